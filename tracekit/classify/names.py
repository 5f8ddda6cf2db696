"""Names of kernels, operators, autograd nodes, host ranges and calls that evidence is read from (``names.toml``).

Every entry is a regular expression.
"""

import tomllib
from pathlib import Path

_TABLES = {
    table: {name: "|".join([pattern] if isinstance(pattern, str) else pattern) for name, pattern in entries.items()}
    for table, entries in tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8")).items()
}
KERNELS, OPERATORS, NODES = _TABLES["kernels"], _TABLES["operators"], _TABLES["nodes"]
RANGES, CALLS, HOST_CALLS = _TABLES["ranges"], _TABLES["calls"], _TABLES["host_calls"]
LIBRARIES, CALLS_OF_KERNELS, COPY_DIRECTIONS = (
    _TABLES[name] for name in ("libraries", "calls_of_kernels", "copy_directions")
)
ROLES_OF_LAYOUTS, FUSED_KERNEL_KINDS = _TABLES["roles_of_layouts"], _TABLES["fused_kernel_kinds"]

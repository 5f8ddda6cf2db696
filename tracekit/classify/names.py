"""Names of kernels, operators, autograd nodes, host ranges and calls that evidence is read from (``names.toml``).

Every entry is a regular expression.
"""

import tomllib
from pathlib import Path


def _read_tables() -> dict[str, dict[str, str]]:
    """Return the patterns of ``names.toml`` by table and name; a list of patterns is one that any of them fits."""
    text = Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, str]] = {}
    for table, entries in tomllib.loads(text).items():
        tables[table] = {}
        for name, patterns in entries.items():
            if isinstance(patterns, str):
                tables[table][name] = patterns
            else:
                tables[table][name] = "|".join(patterns)
    return tables


_TABLES = _read_tables()
KERNELS = _TABLES["kernels"]
OPERATORS = _TABLES["operators"]
NODES = _TABLES["nodes"]
RANGES = _TABLES["ranges"]
CALLS = _TABLES["calls"]
HOST_CALLS = _TABLES["host_calls"]
HOST_ACTIVITIES = _TABLES["host_activities"]
LIBRARIES = _TABLES["libraries"]
CALLS_OF_KERNELS = _TABLES["calls_of_kernels"]
COPY_DIRECTIONS = _TABLES["copy_directions"]
ROLES_OF_LAYOUTS = _TABLES["roles_of_layouts"]
FUSED_KERNEL_KINDS = _TABLES["fused_kernel_kinds"]

"""Print the oldest versions that pyproject.toml allows, as constraints for pip.

python ci/oldest.py > oldest.txt && pip install -c oldest.txt -e . --group dev
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def oldest(requirements: list[str]) -> Iterator[str]:
    """Yield ``name==version`` for each requirement with a lower bound.

    >>> list(oldest(["polars>=2.0", "fsspec[http]>=2024.6"]))
    ['polars==2.0', 'fsspec==2024.6']
    """
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*>=\s*([\w.]+)", requirement)
        if found:
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    about = tomllib.loads(
        (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    )
    sys.stdout.write("\n".join(oldest(about["project"]["dependencies"])) + "\n")

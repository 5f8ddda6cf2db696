"""Set the version, and where pip gets it from, in every file that names them.

python ci/set_version.py 0.5.0               # installed from the archive of its tag
python ci/set_version.py 0.5.0 --published   # installed from PyPI

Files that nothing can compute name the installation: the GitLab job, the notebooks, the pages of the
documentation, the skill. ``tests/test_ci.py`` holds them to ``tracekit._version``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "https://github.com/tracekit-ml/tracekit/archive/refs/tags/v{version}.tar.gz"
REQUIREMENT = re.compile(r"(tracekit-ml(?:\[[a-z0-9,]+\])?) @ https://[^\s\"']+\.tar\.gz")
"""A requirement of this package, as ``tracekit._version.requirement`` gives it."""
ACTION = re.compile(r"tracekit-ml/tracekit/ci@v[0-9.]+")
"""The GitHub action at the tag of a version."""
NAMING_FILES = (
    "README.md",
    "ci/*.yml",
    "docs/*.md",
    "notebooks/*.ipynb",
    "skills/tracekit/SKILL.md",
)


def naming_files() -> list[Path]:
    """Return the files that may say how to install tracekit."""
    return sorted(path for pattern in NAMING_FILES for path in ROOT.glob(pattern))


def set_version(version: str, *, is_published: bool) -> list[Path]:
    """Write the version everywhere; return the files that changed."""
    archive = "" if is_published else ARCHIVE.format(version=version)
    replacements = {ROOT / "tracekit" / "_version.py": [
        (re.compile(r'__version__ = ".*"'), f'__version__ = "{version}"'),
        (re.compile(r'INSTALLED_FROM = ".*"'), f'INSTALLED_FROM = "{archive}"'),
    ]}  # fmt: skip
    replacements[ROOT / "CITATION.cff"] = [
        (re.compile(r"\nversion: .*\n"), f"\nversion: {version}\n")
    ]
    for path in naming_files():
        replacements[path] = [
            (REQUIREMENT, rf"\1 @ {archive}" if archive else r"\1"),
            (ACTION, f"tracekit-ml/tracekit/ci@v{version}"),
        ]
    changed = []
    for path, pairs in replacements.items():
        text = path.read_text(encoding="utf-8")
        new_text = text
        for pattern, replacement in pairs:
            new_text = pattern.sub(replacement, new_text)
        if new_text != text:
            path.write_text(new_text, encoding="utf-8")
            changed.append(path)
    return changed


def main(arguments: Sequence[str]) -> None:
    """Set the version that the command line names."""
    versions = [argument for argument in arguments if re.fullmatch(r"\d+\.\d+\.\d+", argument)]
    if len(versions) != 1:
        sys.exit(f"set_version: name one version, such as 0.5.0\n{__doc__}")
    for path in set_version(versions[0], is_published="--published" in arguments):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])

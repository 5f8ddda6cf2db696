"""Assembly of the site's pages in one folder, with links that work there.

A page of ``docs/`` keeps its path. Pages from elsewhere in the repository (such as the README) get
a path of their own, and links to them are rewritten. Links to other files of the repository lead to
the repository's web address.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docsite import api, commands, json_keys, label_rules, notices, tables
from docsite.links import rewrite

ROOT = Path(__file__).parent.parent
MOVED: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "sample_traces/README.md": "samples.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages from outside ``docs/``, and their paths on the site."""
ELSEWHERE: Mapping[str, str] = {
    "docs/schemas": "reference/json.md",
    "docsite/evidence.toml": "reference/label-rules.md",
    "docsite/notices.toml": "reference/notices.md",
}
"""Folders and files that a page of the site explains."""
COPIED = ("img", "schemas")
"""Folders of ``docs/`` that are on the site as they are."""
GENERATED: Mapping[str, Callable[[], str]] = {
    "reference/api.md": api.page,
    "reference/commands.md": commands.page,
    "reference/json.md": json_keys.page,
    "reference/label-rules.md": label_rules.page,
    "reference/notices.md": notices.page,
    "reference/tables.md": tables.page,
}
"""Pages generated from the code."""


def repository() -> str:
    """Return the address where the repository is shown, as pyproject.toml gives it."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(about["project"]["urls"]["Source"])


def sources() -> dict[str, Path]:
    """Return the handwritten pages: file by path on the site."""
    docs = ROOT / "docs"
    own = {file.relative_to(docs).as_posix(): file for file in sorted(docs.rglob("*.md"))}
    return own | {
        page_path: ROOT / file for file, page_path in MOVED.items() if (ROOT / file).exists()
    }


def assemble(folder: Path) -> list[str]:
    """Write every page and picture to *folder*; return the pages' paths."""
    pages = sources()
    for page_path, file in pages.items():
        text = file.read_text(encoding="utf-8")
        _write(
            folder / page_path, rewrite(text, partial(_site_link, file=file, page_path=page_path))
        )
    for page_path, make in GENERATED.items():
        _write(folder / page_path, make())
    for part in COPIED:
        shutil.copytree(ROOT / "docs" / part, folder / part)
    return sorted([*pages, *GENERATED])


def _site_link(target: str, file: Path, page_path: str) -> str:
    """Return link *target* of *file* as it must be on the page at *page_path*."""
    path, _, anchor = target.partition("#")
    if not path:
        return target
    inside = os.path.relpath((file.parent / path).resolve(), ROOT.resolve()).replace(os.sep, "/")
    page_folder = os.path.dirname(page_path) or "."  # noqa: PTH120 (a path on the site is no path of this machine)
    linked_page = MOVED.get(inside) or ELSEWHERE.get(inside)
    in_docs = inside.removeprefix("docs/")
    is_on_site = in_docs.endswith(".md") or in_docs.split("/")[0] in COPIED
    if linked_page is None and inside.startswith("docs/") and is_on_site:
        linked_page = in_docs
    if linked_page is not None:
        return os.path.relpath(linked_page, page_folder).replace(os.sep, "/") + (
            f"#{anchor}" if anchor else ""
        )
    kind = "tree" if (ROOT / inside).is_dir() else "blob"
    return f"{repository()}/{kind}/main/{inside}"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")

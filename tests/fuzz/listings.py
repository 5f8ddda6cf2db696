"""Lists of files as a server sends them: nothing of them is written outside of our folder."""

from __future__ import annotations

import json
import random
import re
import tempfile
from pathlib import Path
from unittest import mock

from tests.fuzz.others import one_line
from tracekit.errors import TracekitError
from tracekit.parsers import remote

PARTS = (
    *("..", ".", "", "a", "StringIds.parquet", "evil.parquet", "~", "%2e%2e", "..%2f", "C:", "\\"),
    *("..\\", "\0", "\n", "\u202e", "é", "x" * 300, "?", "#", "*", "[", "a b", "-o", "$HOME", "::"),
)
SEPARATORS = ("/", "/", "/", "//", "\\", "%2f", "", "?", "#")
PAGE_PARTS = (
    *("<a ", "<A HREF=", 'href="', "href='", '"', "'", ">", "</a>", "http://", "x", "../", "\n"),
    *('<a href="StringIds.parquet">', '<a href="../../evil">', "<a href=x ", "\0", "&amp;", "é"),
)


def make(choose: random.Random) -> bytes:
    """Names in a folder, and the page of a server."""
    names = []
    for _ in range(choose.randrange(1, 6)):
        name = choose.choice(PARTS)
        for _ in range(choose.randrange(4)):
            name += choose.choice(SEPARATORS) + choose.choice(PARTS)
        names.append(name)
    page = "".join(choose.choice(PAGE_PARTS) for _ in range(choose.randrange(60)))
    root = choose.choice(("http://host/x.parquetdir", "s3://b/x.arrowdir", "zip://x.parquetdir"))
    return json.dumps([root, names, page]).encode()


class _System:
    """A file system that lists these names and writes wherever it is told."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find(self, path: str, maxdepth: int | None = None) -> list[str]:
        return [f"{path}/{name}" for name in self.names]

    def get_file(self, file: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(b"listed")


def check(raw: bytes, folder: Path) -> None:
    """Copy the folder that a server lists; raise if a file is anywhere but in the copy."""
    root, names, page = json.loads(raw)
    home = folder / "a/b/c/d"
    home.mkdir(parents=True, exist_ok=True)
    with (
        mock.patch.object(tempfile, "tempdir", str(home)),
        mock.patch.object(remote, "open_file_system", lambda url: (_System(names), url)),
    ):
        try:
            with remote.fetch_to_local(root) as copy:
                outside = [
                    file
                    for file in folder.rglob("*")
                    if file.is_file() and file.parent.resolve() != Path(copy).resolve()
                ]
                assert not outside, f"written outside: {outside}"
        except TracekitError as error:
            one_line(error)
    left = [file for file in folder.rglob("*") if file.is_file()]
    assert not left, f"left behind: {left}"
    links = re.findall('<a href="([^"]*)">', remote.keep_links(page))
    assert all(f'"{link}"' in page or f"'{link}'" in page or link in page for link in links)

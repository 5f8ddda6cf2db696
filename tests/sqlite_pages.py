"""SQLite exports whose pages are used many times, which SQLite reads without a word."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing

from tests.synthetic_nsight import TABLES

PAGE = 512
CHILDREN = 40
"""Pages below one page of a tree."""
LOCAL_BYTES = (PAGE - 12) * 32 // 255 - 23
"""Bytes of a long row that lie in the tree; the rest is on a chain of other pages."""


def varint(value):
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.insert(0, value & 0x7F | 0x80)
    return bytes(groups)


def page_of(kind, cells, *, last_child=None):
    """Return a page of a tree: 5 has children, 13 has rows."""
    page = bytearray(PAGE)
    start = PAGE
    pointers = []
    for cell in cells:
        start -= len(cell)
        page[start : start + len(cell)] = cell
        pointers.append(start)
    header = struct.pack(">BHHHB", kind, 0, len(cells), start, 0)
    if last_child is not None:
        header += struct.pack(">I", last_child)
    header += struct.pack(f">{len(pointers)}H", *pointers)
    assert len(header) <= start
    page[: len(header)] = header
    return page


def page_with_children(children):
    *first, last = children
    cells = [struct.pack(">I", child) + varint(key) for key, child in enumerate(first, start=1)]
    return page_of(5, cells, last_child=last)


class Pages:
    """The pages of an export with one kernel, to which others are added."""

    def __init__(self, path):
        self.path = path
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA page_size = {PAGE}")
            database.executescript(TABLES)
            database.execute("INSERT INTO StringIds VALUES (1, 'kernel')")
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 1, 7, 1, 1 << 24, 1, 1)"
            )
            database.commit()
            self.roots = dict(database.execute("SELECT name, rootpage FROM sqlite_master"))
        self.data = bytearray(path.read_bytes())

    def add(self, page):
        self.data += page
        return len(self.data) // PAGE

    def page(self, number):
        return self.data[(number - 1) * PAGE : number * PAGE]

    def write(self, root, page):
        """Replace a root and write the file."""
        self.data[(root - 1) * PAGE : root * PAGE] = page
        self.data[28:32] = struct.pack(">I", len(self.data) // PAGE)
        self.path.write_bytes(self.data)
        return self.path


def write_repeated_page(path, *, depth, table="CUPTI_ACTIVITY_KIND_KERNEL"):
    """Write a table of ``CHILDREN ** depth`` times its rows: each page of the tree is all children of the next."""
    pages = Pages(path)
    root = pages.roots[table]
    child = pages.add(pages.page(root))
    for _ in range(depth - 1):
        child = pages.add(page_with_children([child] * CHILDREN))
    return pages.write(root, page_with_children([child] * CHILDREN))


def write_shared_text(path, *, rows, chain_pages):
    """Write NVTX ranges whose texts all lie on the same chain of pages."""
    pages = Pages(path)
    rest = chain_pages * (PAGE - 4)
    # Types of the 13 columns: the times and the kind are small integers, the text fills the row.
    for text_bytes in range(rest, rest + PAGE):
        types = [1, 2, 1, 0, 0, 0, 2 * text_bytes + 13, 4, 0, 0, 8, 0, 0]
        header = b"".join(map(varint, types))
        header = bytes([len(header) + 1]) + header
        row = header + struct.pack(">bhb", 1, 300, 59) + b"x" * text_bytes
        row += struct.pack(">i", (1 << 24) + 1)
        if len(row) == LOCAL_BYTES + rest:
            break
    first = len(pages.data) // PAGE + 1
    for number in range(chain_pages):
        is_last = number == chain_pages - 1
        part = row[LOCAL_BYTES + number * (PAGE - 4) :][: PAGE - 4]
        pages.add(struct.pack(">I", 0 if is_last else first + number + 1) + part)
    cell = row[:LOCAL_BYTES] + struct.pack(">I", first)
    numbers = list(range(1, rows + 1))
    leaves = []
    for start in range(0, rows, 8):
        cells = [varint(len(row)) + varint(key) + cell for key in numbers[start : start + 8]]
        leaves.append(pages.add(page_of(13, cells)))
    assert len(leaves) <= CHILDREN
    root = pages.page(leaves[0]) if len(leaves) == 1 else page_with_children(leaves)
    return pages.write(pages.roots["NVTX_EVENTS"], root)


def text_row(values):
    """Return a row of small integers, texts and nulls."""
    types = []
    body = b""
    for value in values:
        if value is None:
            types.append(0)
        elif isinstance(value, int):
            types.append(1)
            body += struct.pack(">b", value)
        else:
            types.append(2 * len(value) + 13)
            body += value.encode()
    header = b"".join(map(varint, types))
    return bytes([len(header) + 1]) + header + body


def write_repeated_index(path, *, depth):
    """Write a list of tables that names one index of SQLite's own ``CHILDREN ** depth`` times."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.execute("CREATE TABLE StringIds (id UNIQUE, value)")
        database.commit()
        listed = database.execute("SELECT * FROM sqlite_master").fetchall()
    data = bytearray(path.read_bytes())
    children = []
    for key, values in enumerate(listed, start=1):
        row = text_row(values)
        data += page_of(13, [varint(len(row)) + varint(key) + row])
        children.append(len(data) // PAGE)
    table, index = children
    for _ in range(depth):
        data += page_with_children([index] * CHILDREN)
        index = len(data) // PAGE
    root = page_with_children([table, index])
    # The first page begins with the header of the file, and its one cell stands at its end.
    data[100:114] = root[:14]
    data[114:PAGE] = root[114:]
    data[28:32] = struct.pack(">I", len(data) // PAGE)
    path.write_bytes(data)
    return path

"""Pieces of JSON, and of what is none, that change most where they are put in."""

from __future__ import annotations

TOKENS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\n  },\n  {",
    b"\0",
    b"N/A",
    b"-inf",
    b'{"ph":"X"',
    b"1e999",
    b"\xff",
    b"\xff\xfe",
]

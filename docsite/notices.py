"""Reference of notices: what each code means."""

from __future__ import annotations

import tomllib
from pathlib import Path

from docsite.code import row, table

MEANINGS_FILE = Path(__file__).with_name("notices.toml")
"""What each notice means, by its code."""


def meanings() -> dict[str, str]:
    """Return what each notice means, by its code."""
    notices: dict[str, str] = tomllib.loads(MEANINGS_FILE.read_text(encoding="utf-8"))["notice"]
    return notices


def page() -> str:
    """Return the page of notices."""
    out = [
        "# Notices",
        "",
        "What was lost, missing or chosen on the way travels with the result: in the terminal under"
        ' "Warnings", in JSON as `warnings`, in Python as `notices`. Each is data: a `code`, which keeps its'
        " meaning, the `ranks` and `labels` it is about, and `values`, the figures and names in its sentence;"
        ' where a code can mean several things, `values["case"]` tells which. The sentence for people'
        " (`message`) is made of them and may be reworded. A `severity` of `note` changes no figure and asks for"
        " nothing: the first screen leaves it out.",
        "",
        *table("code", "means"),
    ]
    out += [row(f"`{code}`", meaning) for code, meaning in meanings().items()]
    return "\n".join(out) + "\n"

"""Colours of words in a terminal have one meaning each, which the palette states."""

from __future__ import annotations

import re
from pathlib import Path

import tracekit
from tracekit.report import palette

COLOUR = re.compile(r"""["'](?:bold )?(red|green|yellow|blue|cyan|magenta)["']""")


def test_no_renderer_names_a_colour_itself():
    folder = Path(tracekit.__file__).parent
    files = [
        *folder.glob("report/terminal/*.py"),
        *folder.glob("report/schedule/*.py"),
        *folder.glob("cli/*.py"),
    ]
    named = {file.name: COLOUR.findall(file.read_text(encoding="utf-8")) for file in files}
    assert {name: colours for name, colours in named.items() if colours} == {}


def test_colours_of_words_differ():
    assert len({palette.GOOD, palette.BAD, palette.UNSURE, palette.TO_TYPE}) == 4

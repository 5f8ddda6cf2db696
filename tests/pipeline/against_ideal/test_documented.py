"""The page on reconstruction and the list of notices name every part and every warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docsite.notices import meanings
from tracekit.pipeline.against_ideal import PARTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reconstruction.md").read_text(encoding="utf-8")


def test_every_part_of_the_gap_is_explained_in_its_order():
    rows = re.findall(
        r"^\| `(\w+)` \|", PAGE.split("## Ideal and gap")[1].split("## Lanes")[0], re.MULTILINE
    )
    assert tuple(rows) == PARTS


def test_every_warning_is_explained():
    code = "\n".join(
        file.read_text(encoding="utf-8")
        for file in (ROOT / "tracekit" / "pipeline" / "against_ideal").glob("*.py")
    )
    used = set(re.findall(r'Notice\(\s*"([a-z-]+)"', code))
    assert used
    assert used <= set(meanings())

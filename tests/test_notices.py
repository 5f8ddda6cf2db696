"""Every notice has a line on the page that explains them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def codes():
    """The codes that the package gives notices."""
    for file in (ROOT / "tracekit").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "Notice"
                and node.args
            ):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def test_every_notice_is_explained_and_no_other():
    page = (ROOT / "docs" / "notices.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    used = set(codes())
    assert len(used) > 50
    assert used - explained == set()
    assert explained - used <= {"no-shapes"}  # a finding of the doctor's

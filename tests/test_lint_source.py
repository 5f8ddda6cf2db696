"""The checks of the source text find what they look for."""

from __future__ import annotations

import pytest

from ci.lint_source import (
    Module,
    defined_names,
    private_uses,
    private_uses_of_test,
    reads_of_sentences,
)


@pytest.mark.parametrize(
    "code",
    [
        "import polars as pl\npl._x",
        "import typer.core\ntyper.core._x()",
        "from typer import core\ncore.Group()._x",
        "from x import _y",
        "from x._y import z",
        "import x._y",
        "import polars as pl\ngetattr(pl, '_x')",
        "def f(frame):\n    return frame._x",
        "import os\nos._exit(0)",
    ],
)
def test_a_private_use_is_found(code):
    assert list(private_uses(Module("m.py", code), own_names=set()))


@pytest.mark.parametrize(
    "code",
    [
        "from tracekit._util import text\ntext.x",
        "from __future__ import annotations",
        "import os\nos.getpid()",
        "import x\nx.__name__",
        "class A:\n    def f(self):\n        self._x = 1\n        return self._x",
    ],
)
def test_other_uses_are_not(code):
    module = Module("m.py", code)
    assert not list(private_uses(module, defined_names(module)))


@pytest.mark.parametrize(
    "code",
    [
        "from tracekit.align.steps import _find",
        "from tracekit.align import steps\nsteps._find()",
        "from tracekit.cli._server import answer",
        "run()._kept",
        "monkeypatch.setattr(steps, '_find', None)",
        "mock.patch.object(steps, '_find', None)",
    ],
)
def test_a_private_name_in_a_test_is_found(code):
    assert list(private_uses_of_test(Module("tests/test_m.py", code)))


@pytest.mark.parametrize(
    "code",
    [
        "from tracekit._util.text import ms",
        "from tracekit import _loops",
        "analysis._repr_html_()",
        "class Folder:\n    def _read(self):\n        return self._files",
        "def _longest(rows):\n    return rows\n_longest([])",
        "monkeypatch.setattr(steps, 'find', None)",
    ],
)
def test_a_tests_own_private_names_and_documented_ones_are_not(code):
    assert not list(private_uses_of_test(Module("tests/test_m.py", code)))


def test_code_that_reads_a_sentence_is_found():
    asking = "any('their peer' in n.message for n in notices)"
    splitting = "notice.message.split(':')[0]"
    assert list(reads_of_sentences(Module("m.py", asking))) == [1]
    assert list(reads_of_sentences(Module("m.py", splitting))) == [1]
    of_error = "if path in error.message:\n    pass\n"
    of_finding = 'if finding.text().startswith("the GPU"):\n    pass\n'
    searching = 'found = re.search("ms", self.problem)\n'
    for source in (of_error, of_finding, searching):
        assert list(reads_of_sentences(Module("m.py", source))) == [1]
    assert list(reads_of_sentences(Module("m.py", "print(notice.message)"))) == []

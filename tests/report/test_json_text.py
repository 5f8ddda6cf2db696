"""The JSON text of an analysis."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of
from tracekit.report.write import render_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sample", ["1f1b", "reload", "overlapped"])
def test_the_streamed_text_is_the_text_of_to_json(samples, sample):
    analysis = analysis_of(samples / sample)
    assert "".join(render_json(analysis)) == analysis.to_json() + "\n"

"""Runs that commands read in no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kept import analysis_of


@pytest.fixture
def saved(samples, tmp_path):
    """Save the analysis of a sample, which a gate reads as it reads traces; return the file."""

    def save(name):
        path = tmp_path / f"{Path(name).name}.json"
        path.write_text(analysis_of(samples / name).to_json())
        return path

    return save

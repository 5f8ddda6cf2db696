"""Errors on their way between processes."""

from __future__ import annotations

import pickle

import pytest

from tracekit.errors import InputError, Notice, TracekitError
from tracekit.graph.change import RefusedError


def test_an_error_of_a_worker_keeps_its_reason():
    notice = Notice("truncated", values={"case": "packet"})
    error = InputError(
        "rank0.json: is damaged", hint="record it again", quote=("here", "^"), notice=notice
    )
    received = pickle.loads(pickle.dumps(error))
    assert isinstance(received, InputError)
    assert str(received) == str(error)
    assert received.notice == notice


def test_a_change_that_is_refused_is_an_error_like_others():
    with pytest.raises(TracekitError, match="no communication"):
        raise RefusedError("there is no communication in this run")

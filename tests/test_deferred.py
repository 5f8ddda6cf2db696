"""Modules that run late: importing them does nothing, using them runs them."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tracekit import program
from tracekit._util.deferred import put_off


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that says when it runs, and is put off."""
    (tmp_path / "seldom_used.py").write_text("import builtins\nbuiltins.ran += 1\nvalue = 7\n", encoding="utf-8")
    (tmp_path / "often_used.py").write_text("import builtins\nbuiltins.ran += 10\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.ran", 0, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    put_off(["seldom_used", "nowhere_to_be_found"])
    yield
    for name in ("seldom_used", "often_used"):
        sys.modules.pop(name, None)


def ran():
    import builtins

    return builtins.ran


@pytest.mark.usefixtures("module")
def test_it_runs_once_when_something_is_asked_of_it():
    import seldom_used

    assert ran() == 0
    assert seldom_used.value == 7
    assert seldom_used.value + ran() == 8


@pytest.mark.usefixtures("module")
def test_taking_a_name_from_it_runs_it():
    from seldom_used import value

    assert (value, ran()) == (7, 1)


@pytest.mark.usefixtures("module")
def test_others_run_at_once_and_what_is_not_there_is_not():
    import often_used  # noqa: F401 - it says so itself

    assert ran() == 10
    with pytest.raises(ModuleNotFoundError):
        import nowhere_to_be_found  # noqa: F401


def test_the_modules_that_the_command_line_puts_off_are_there():
    """Else a library has renamed one, and it runs again in every process."""
    assert [name for name in program._SELDOM if importlib.util.find_spec(name) is None] == []

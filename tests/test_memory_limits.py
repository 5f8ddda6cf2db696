"""Limits on the address space: too small ones are named before anything else, small ones mean few threads."""

from __future__ import annotations

import os

import pytest

from tracekit._util import machine
from tracekit.errors import MachineError


@pytest.fixture
def limit(monkeypatch):
    """Return a function that sets the limit that the process seems to have."""
    for name in machine.THREADS_IN_SMALL_ADDRESS_SPACE:
        monkeypatch.delenv(name, raising=False)

    def set_limit(limit_bytes):
        monkeypatch.setattr(machine, "address_space_limit", lambda: limit_bytes)
        machine.check_address_space()
        return os.environ.get("POLARS_MAX_THREADS")

    yield set_limit
    for name in machine.THREADS_IN_SMALL_ADDRESS_SPACE:
        os.environ.pop(name, None)


@pytest.mark.parametrize("limit_bytes", [0, 700_000_000, 1_200_000_000])
def test_a_limit_below_1_3_gb_is_refused(limit, limit_bytes):
    with pytest.raises(MachineError, match=r"the limit on memory is .* GB of address space"):
        limit(limit_bytes)


@pytest.mark.parametrize(
    ("limit_bytes", "threads"),
    [(1_400_000_000, "2"), (15_000_000_000, "2"), (17_000_000_000, None), (None, None)],
)
def test_libraries_get_two_threads_under_limits_up_to_16_gb(limit, limit_bytes, threads):
    assert limit(limit_bytes) == threads


def test_threads_that_the_environment_sets_stay(limit, monkeypatch):
    monkeypatch.setenv("POLARS_MAX_THREADS", "7")
    assert limit(2_000_000_000) == "7"

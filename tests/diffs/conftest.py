"""The hand-made analyses of the gate's tests."""

from tests.diffs.gates.conftest import make, save, scaled  # noqa: F401 - fixtures

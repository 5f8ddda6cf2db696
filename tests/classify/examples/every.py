"""Examples of all families of rules: functions that write a trace, by the name of the rule."""

from __future__ import annotations

from tests.classify.examples import collectives, copies, frameworks, names, operators
from tests.classify.examples.writing import EXAMPLES

__all__ = ["EXAMPLES", "collectives", "copies", "frameworks", "names", "operators"]

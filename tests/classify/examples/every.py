"""The examples of all families of rules: by the rule's name, what writes its trace."""

from __future__ import annotations

from tests.classify.examples import collectives, copies, frameworks, names, operators
from tests.classify.examples.writing import EXAMPLES

__all__ = ["EXAMPLES", "collectives", "copies", "frameworks", "names", "operators"]

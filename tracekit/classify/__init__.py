"""Classification of GPU events: every event gets a label, and the evidence for it can be shown.

>>> import tracekit
>>> labelled = tracekit.classify(tracekit.load("sample_traces/reload", ranks=[0]).events)
>>> dict(labelled["label"].value_counts().iter_rows())["reload"]
8

The package can be called, as ``classify.classify``: the call and the package have one name, and
Python puts the package in the place of a function of its name as soon as any module of it is
imported.
"""

import sys
import types
from pathlib import Path

import polars as pl

from tracekit.classify.classify_events import classify
from tracekit.classify.explain import Explanation, Tried, explain
from tracekit.classify.rules import Rule, RuleBook, builtin_rules, load_rules

__all__ = [
    "CallablePackage",
    "Explanation",
    "Rule",
    "RuleBook",
    "Tried",
    "builtin_rules",
    "classify",
    "explain",
    "load_rules",
]


class CallablePackage(types.ModuleType):
    """The type of this package.

    >>> import tracekit
    >>> type(tracekit.classify).__name__
    'CallablePackage'
    """

    def __call__(
        self, events: pl.DataFrame, *, rules: str | Path | RuleBook | None = None
    ) -> pl.DataFrame:
        """Label the GPU events of one or several ranks; see ``tracekit.classify.classify``."""
        return classify(events, rules=rules)


# The way to customise a module that Python's language reference describes ("Customizing module
# attribute access").
sys.modules[__name__].__class__ = CallablePackage

"""Classification of GPU events: every event gets a label, and the evidence for it can be shown.

>>> from tracekit import load
>>> from tracekit.classify import classify
>>> labelled = classify(load("sample_traces/reload", ranks=[0]).rank(0).events)
>>> dict(labelled["label"].value_counts().iter_rows())["reload"]
8
"""

from tracekit.classify.classify_events import classify
from tracekit.classify.explain import Explanation, Tried, explain
from tracekit.classify.rules import Rule, RuleBook, builtin_rules, load_rules

__all__ = ["Explanation", "Rule", "RuleBook", "Tried", "builtin_rules", "classify", "explain", "load_rules"]

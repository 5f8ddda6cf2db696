"""Findings: what costs time, why, what to do about it and what that would save, as one typed list.

``find`` asks every entry of ``REGISTRY``. A finding is data (``Finding``); its sentences are made
in ``report.findings``. The list is ordered by predicted saving, then by cost. Costs and savings are
per step, on the clock of the step time.
"""

from tracekit.documents.findings import Finding, Place
from tracekit.findings.collect import REGISTRY, find

__all__ = ["REGISTRY", "Finding", "Place", "find"]

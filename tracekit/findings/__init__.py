"""Findings: what costs time, why, what to do about it and what that would save, as one typed list.

``collect.find`` asks every entry of its ``REGISTRY``. The list is ordered by predicted saving, then
by cost. Costs and savings are per step, on the clock of the step time.
"""

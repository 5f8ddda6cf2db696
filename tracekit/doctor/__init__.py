"""Diagnosis of recordings: what they contain, what they lack, and how to record better."""

from tracekit.doctor.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

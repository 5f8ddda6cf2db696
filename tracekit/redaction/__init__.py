"""A copy of a trace without what should not leave the house: environment, paths, host and user names, stacks.

What an analysis needs stays: events, times, numbers, names of kernels and operators. What is not known to be harmless
goes; the list of what stays is in ``allowed``, and in docs/redact.md for people.
"""

from tracekit.redaction.rewrite import Redacted, redact, redact_each

__all__ = ["Redacted", "redact", "redact_each"]

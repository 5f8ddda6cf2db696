"""Redaction: copies of traces without text that may name people, machines, places or projects.

Keys, tables and words that are known stay; everything else is dropped or replaced. The promises are
in docs/redact.md.
"""

from tracekit.redaction.redact import Redacted, redact, redact_each

__all__ = ["Redacted", "redact", "redact_each"]

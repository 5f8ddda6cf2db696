"""Redaction: copies of traces without text that may name people, machines, places or projects.

Keys, tables and words that are known stay; everything else is dropped or replaced. The promises are
in docs/redact.md. What is heavy is imported when the call is made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.redact.files import Redacted

__all__ = ["redact"]


def redact(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    words: Sequence[str] = (),
    keep: Collection[str] = (),
) -> tuple[Redacted, ...]:
    """Write a redacted copy of a trace, or of each trace of a folder.

    Args:
        path: PyTorch profiler trace (``.json``, ``.json.gz``), Nsight Systems ``.sqlite``, or a
            folder of them. Redact the ranks of one run together: pseudonyms are the same on all
            ranks of a call, not across calls.
        output: File to write; for a folder, a folder. Its files are named after their rank.
        words: Words to replace although they are known, in any case and inside other words.
        keep: What to keep beyond known names: any of ``fields.KEEP_OPTIONS``.

    Returns:
        What was written, file by file.

    Examples:
        >>> import tempfile
        >>> [done.path.name for done in redact("sample_traces/reload", tempfile.mkdtemp())][:2]
        ['rank0.pt.trace.json.gz', 'rank1.pt.trace.json.gz']

    """
    from tracekit.redact.files import redact_each

    return tuple(redact_each(path, output, words=words, keep=keep))

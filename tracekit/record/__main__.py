"""The process that answers a recording: ``python -m tracekit.record FILE…`` prints the answer as JSON."""

import os
import sys
from collections.abc import Sequence

import msgspec

from tracekit.errors import TracekitError
from tracekit.record.answer import Answer, answer_of
from tracekit.run.analyze import analyze

LOWEST_PRIORITY = 19
"""Increment of niceness: the process runs when the processor has nothing else to do."""


def main(files: Sequence[str]) -> None:
    """Analyse *files* and print the answer as JSON."""
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    try:
        answer = answer_of(analyze(list(files), timeline=False, workers=1))
    except TracekitError as error:
        answer = Answer(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main(sys.argv[1:])

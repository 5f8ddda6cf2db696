"""Start of the command line. Ctrl-C while it is still being imported ends in one line, as it does later.

This module lies beside the package, because importing the package takes most of that time.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import and run the command line."""
    # A shell lets jobs in the background ignore Ctrl-C, and they go on doing so.
    catches_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches_interrupts:
        signal.signal(signal.SIGINT, _leave)
    from tracekit.cli import main as run

    if catches_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has been read or written, and modules half imported cannot be unwound."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)

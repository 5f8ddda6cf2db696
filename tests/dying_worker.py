"""Work that kills its process, in a module that worker processes import in no time."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die(folder: Path, times: int, item: int) -> int:
    """Kill the process at item 1, the first *times* times."""
    deaths = len(list(folder.iterdir()))
    if item == 1 and deaths < times:
        (folder / str(deaths)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10

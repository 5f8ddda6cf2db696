"""Sample run of ``tracekit demo``: a pipeline with known problems."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.errors import OutputError
from tracekit.schedules import generate
from tracekit.synthetic.files import write_run
from tracekit.synthetic.recipe import Recipe


def sample_recipe() -> Recipe:
    """Return the recipe: 1F1B on four ranks whose third stage is slow, with transfers and a host that launches late.

    >>> sample_recipe().world_size
    4
    """
    plan = generate("1f1b", pp=4, microbatches=8)
    return Recipe(plan, p2p_ns=120_000, stage_factor={2: 1.25}, jitter=0.02, host_ns=60_000)


def write_sample(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the sample run into *folder*, which must be empty or contain only an older sample.

    >>> import tempfile
    >>> len(write_sample(tempfile.mkdtemp()))
    4
    """
    target = Path(folder)
    wanted = {f"rank{rank}.pt.trace.json.gz" for rank in range(sample_recipe().world_size)} | {"report.html"}
    if target.exists() and (not target.is_dir() or any(file.name not in wanted for file in target.iterdir())):
        raise OutputError(f"{target}: already exists and contains other files", hint="name another folder with -o")
    return write_run(sample_recipe(), target)

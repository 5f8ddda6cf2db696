"""Why a trace has no GPU work: cut off, not recorded, or of a GPU that cannot be read."""

from __future__ import annotations

import polars as pl

from tracekit.schema import RankEvents

_OTHER_DEVICE = r"(?i)\b(npu|ascend|aclnn|aclrt|aclop|hccl|xpu|hpu|mps|tpu)"
"""Names by which other accelerators' runtimes and operators are known."""


def why_no_gpu(rank: RankEvents) -> str:
    """Return in words why *rank* has no GPU events, and what would help.

    >>> from tracekit.schema import EVENTS, Source, conform
    >>> events = conform(pl.DataFrame({"kind": ["cpu_op"], "name": ["aclnnMatmul"]}), EVENTS)
    >>> why_no_gpu(RankEvents(events, Source("a.json", "kineto", 0, "name")))
    "it is another accelerator's trace: only CUDA and ROCm traces are read here"
    """
    if any(notice.code == "truncated" for notice in rank.source.notices):
        return "the file ends before them"
    kinds = set(rank.events["kind"].cast(pl.String).unique().to_list())
    names = rank.events["name"].unique().cast(pl.String)
    if names.str.contains(_OTHER_DEVICE).any():
        return "it is another accelerator's trace: only CUDA and ROCm traces are read here"
    if not kinds & {"cpu_op", "runtime", "driver", "annotation", "python"}:
        return "nothing in it comes from PyTorch's profiler or Nsight Systems: only their traces are read here"
    return "record with CUDA activities on"

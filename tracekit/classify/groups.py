"""What a process group is for, told by how it is used: the gradients that are summed on it, or the calls beside it.

Nobody describes most groups. One on which hooks of parameters sum gradients is data parallel, and so is whatever else
is asked on it. A kernel whose launch the file lost belongs to the one group its stream serves.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.classify._nest import Ints
from tracekit.classify._text import Bools, Text
from tracekit.classify.collectives import Collectives

_KINDS = ("dp", "pp", "tp", "cp", "ep")


def group_uses(gpu: pl.DataFrame, comm: Collectives, kinds: Text, *, summed: Bools, lost: Bools) -> Text:
    """Kind of every communication kernel's group as its use shows; null where the group's own description speaks.

    *summed* are the kernels that sum gradients for a parameter's hook, *lost* those whose launch is not in the file.
    """
    group = np.where(lost & (comm.group.codes < 0), _stream_groups(gpu, comm), comm.group.codes)
    known = np.full(len(comm.group.values) + 1, -1, np.int64)
    known[comm.group.codes[summed & (comm.group.codes >= 0)]] = _KINDS.index("dp")
    kind = np.array([*(_KINDS.index(v) if v in _KINDS else -1 for v in kinds.values), -1], np.int64)[kinds.codes]
    described = (kind >= 0) & (comm.group.codes >= 0)
    known[comm.group.codes[described]] = kind[described]
    known[-1] = -1
    return Text(_KINDS, np.where(comm.library.present & ~kinds.present, known[group], -1))


def _stream_groups(gpu: pl.DataFrame, comm: Collectives) -> Ints:
    """For every event the one group that its stream's collectives belong to, -1 where there is none or several."""
    place = ("device", "stream")
    code = pl.col("code").filter(pl.col("code") >= 0)
    one = pl.when(code.n_unique().over(place) == 1).then(code.max().over(place))
    table = pl.DataFrame({"code": comm.group.codes, "device": gpu["device"], "stream": gpu["stream"]})
    return table.select(one.fill_null(-1))["code"].to_numpy().astype(np.int64)

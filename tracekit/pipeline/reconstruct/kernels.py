"""Evidence per GPU event for reconstruction, in the order in which the host launched the events."""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, to_int64
from tracekit.classify.microbatch import parse_path
from tracekit.classify.names import RANGES
from tracekit.metrics.label_intervals import label_codes
from tracekit.schema import LABELS

UNUSED, FORWARD, AUTOGRAD, LOOSE_WGRAD, MESSAGE = range(5)
"""Categories of GPU events: not used here, kernel of a forward, kernel run by the autograd engine,
weight gradient run outside the engine, point-to-point message."""

_CATEGORY_OF_LABEL = {
    "forward": FORWARD,
    **dict.fromkeys(("dgrad", "backward", "recompute"), AUTOGRAD),
    "wgrad": LOOSE_WGRAD,  # AUTOGRAD if it belongs to an autograd node
}
_MAX_SEQUENCE_NUMBER = 2**62


def prepare(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return GPU events in launch order, with the columns that reconstruction needs.

    Added columns: ``category`` (see above); ``code``, the index of the label in ``LABELS``;
    ``host_ns``, the time of the launch, or of the start if no launch was recorded; ``number``, the
    autograd sequence number; ``named_op`` and ``block``, see ``read_ranges``. ``stage`` and
    ``microbatch`` come from ranges where these name them.

    >>> from tracekit.schema import LABELLED, conform
    >>> rows = [{"label": "forward", "launch_ns": 5, "start_ns": 9}, {"label": "wgrad", "launch_ns": 2, "start_ns": 9}]
    >>> prepare(conform(pl.DataFrame(rows), LABELLED))["category"].to_list()
    [3, 1]
    """
    rows = labelled.with_columns(host_ns=pl.coalesce("launch_ns", "start_ns")).sort(
        "host_ns", maintain_order=True
    )
    codes = label_codes(rows)
    annotations = CategoryColumn.from_series(rows["annotations"]).fill(
        CategoryColumn.from_series(rows["annotation"])
    )
    category = _categories(rows, codes, annotations)
    named = read_ranges(annotations, backward=(category == AUTOGRAD) | (category == LOOSE_WGRAD))
    # A stage or a micro-batch alone is the classifier's count, which does not look across ranks.
    both_known = pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()
    is_numbered = pl.col("autograd_sequence").is_between(0, _MAX_SEQUENCE_NUMBER)
    is_recompute = pl.lit(pl.Series(codes == LABELS.index("recompute")))
    return rows.with_columns(
        *(
            pl.coalesce(named[name], pl.when(both_known).then(name)).alias(name)
            for name in ("stage", "microbatch")
        ),
        pl.Series("category", category),
        pl.Series("code", codes),
        named["op"].alias("named_op"),
        named["block"],
        number=pl.when(is_numbered & ~is_recompute).then("autograd_sequence"),
    )


def _categories(
    rows: pl.DataFrame, codes: Ints, annotations: CategoryColumn
) -> npt.NDArray[np.int8]:
    """Return the category of each row.

    Args:
        rows: GPU events in launch order.
        codes: Index of the label in ``LABELS``, -1 without a label.
        annotations: Ranges around each event's launch.
    """
    # Code -1: no label.
    of_label = np.array(
        [_CATEGORY_OF_LABEL.get(label, UNUSED) for label in LABELS] + [UNUSED], np.int8
    )
    category = of_label[codes]
    category[(category == LOOSE_WGRAD) & present(rows["node"])] = AUTOGRAD
    # What is done once for the gradients of all micro-batches belongs to no cell.
    category[(category == LOOSE_WGRAD) & annotations.matches(RANGES["reduces_gradients"])] = UNUSED
    category[(codes == LABELS.index("pp_comm")) & present(rows["p2p"])] = MESSAGE
    return category


def read_ranges(paths: CategoryColumn, *, backward: Bools) -> pl.DataFrame:
    """Return op, stage and micro-batch that ``PP:`` ranges name for each kernel, and the block of two it is in.

    Inside a block of a forward and a backward, *backward* tells to which of them a kernel belongs,
    unless the kernel has a range of its own.

    >>> ranges = pl.Series(["step > PP:2F7", "PP:(0F7;3B1)OVERLAP_F_B", "PP:(0F7;3B1)OVERLAP_F_B"])
    >>> paths = CategoryColumn.from_series(ranges)
    >>> read_ranges(paths, backward=np.array([False, False, True])).rows()
    [('F', 2, 7, None), ('F', 0, 7, 'PP:(0F7;3B1)'), ('B', 3, 1, 'PP:(0F7;3B1)')]
    """
    schema = {
        "op": pl.String(),
        "stage": pl.Int32(),
        "microbatch": pl.Int32(),
        "block": pl.String(),
    }
    # Two rows for every distinct path: for a forward and for a backward kernel.
    named: list[tuple[Any, ...]] = []
    for ranges in map(parse_path, paths.values):
        for work in (ranges.forward, ranges.backward):
            op = (work.op, work.stage, work.microbatch) if work else (None, None, None)
            named.append((*op, ranges.block))
    # The last is for no path.
    table = pl.DataFrame([*named, (None,) * len(schema)], schema=schema, orient="row")
    return table[np.where(paths.present, 2 * paths.codes + backward, len(named))]


KERNEL_COLUMNS = (
    "category",
    "host_ns",
    "start_ns",
    "end_ns",
    "code",
    "number",
    "name",
    "p2p",
    "named_op",
    "stage",
    "microbatch",
)
"""Columns of ``prepare`` that ``Kernels`` reads."""


class Kernels:
    """Columns of ``prepare`` for one step, as arrays. Numbers are -1 where there is none."""

    def __init__(self, rows: pl.DataFrame) -> None:
        """Read the columns of *rows*, which ``prepare`` returned."""
        self.category: npt.NDArray[np.int8] = rows["category"].to_numpy()
        self.host_ns: Ints = rows["host_ns"].to_numpy()  # ascending
        self.duration_ns: Ints = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
        self.is_wgrad: Bools = rows["code"].to_numpy() == LABELS.index("wgrad")
        self.number = to_int64(rows["number"])
        # Code of the kernel's name.
        self.name: npt.NDArray[np.uint32] = rows["name"].to_physical().to_numpy()
        self.p2p = rows["p2p"]
        self.named_op = CategoryColumn.from_series(rows["named_op"])
        self.stage = to_int64(rows["stage"])
        self.microbatch = to_int64(rows["microbatch"])

    def rows_of(self, category: int) -> Ints:
        """Return the rows of one category, ascending."""
        return np.flatnonzero(self.category == category)

    @property
    def message_ns(self) -> Ints:
        """Launch times of the messages, ascending."""
        return self.host_ns[self.rows_of(MESSAGE)]

"""Time by label, how much of it compute hides, and what hiding costs."""

from collections.abc import Mapping
from functools import partial

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Figures
from tracekit.documents.coding import to_plain_rows
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.sections.budget import kind_of, recorded_ranks
from tracekit.report.table import Column, Table, make_table
from tracekit.report.words import WORDS
from tracekit.schema import LABELS

MIN_LOUD_SHARE = 0.01
"""Share of the span above which work without a known label is highlighted."""
MIN_NS_SHOWN = 500
"""Time per rank from which a compute label is listed."""
MIN_COLUMN_SHARE = 0.005
"""Share of some label's time from which a compute label that hides it has a column; less would be
shown as 0 %."""
MAX_BESIDE = 4
"""Compute labels named beside one label."""
MIN_HIDING_ROW_SHARE = 0.005
"""Share of the whole cost of hiding from which a label has a row."""


class LabelRow:
    """One label over all ranks; times are means over *ranks* ranks whose sum is *total*."""

    def __init__(self, label: str, total: Figures, ranks: int) -> None:
        span_ns = max(1, total.budget.span_ns)
        ns = total.label_ns[label]
        exposed_ns = total.budget.exposed_ns.get(label, 0)
        wait_ns = total.wait_ns.get(label)
        self.label = label
        self.kind = kind_of(label)
        self.ns = ns / ranks
        self.share = ns / span_ns
        self.count = total.label_count.get(label, 0)
        """Events on all ranks."""
        self.hidden = None if self.kind == "compute" else total.overlap.get(label)
        """Share of its own time that compute hides; None for compute itself."""
        self.exposed_ns = exposed_ns / ranks
        self.exposed_share = exposed_ns / span_ns
        """Share of the span."""
        self.wait_ns = None if wait_ns is None else wait_ns / ranks
        self.loud = label == "other" and ns > MIN_LOUD_SHARE * span_ns
        """Whether this is work without a known label that takes more than ``MIN_LOUD_SHARE`` of the
        span."""
        self.because_ns = {}
        for cause, cause_ns in total.because_ns.get(label, {}).items():
            if cause_ns:
                self.because_ns[cause] = cause_ns / ranks
        """Exposed time by cause (``schema.EXPOSURE_CAUSES``), where causes are known."""
        self.blocking_ns = total.blocking_ns.get(label)
        """Exposed time on the critical path, over all ranks, where it is known."""

    def causes(self, *, most: int = 2, least: float = 0.05) -> list[tuple[str, float]]:
        """Return the *most* largest causes of exposure with their shares of the exposed time, if at least *least*."""
        exposed_ns = sum(self.because_ns.values())
        largest = sorted(self.because_ns.items(), key=lambda item: -item[1])[:most]
        return [(cause, ns / exposed_ns) for cause, ns in largest if ns >= least * exposed_ns]


def label_rows(analysis: Analysis) -> tuple[LabelRow, ...]:
    """Return the labels that ran, in the order of the label list."""
    total = analysis.total
    ranks = recorded_ranks(analysis)
    return tuple(LabelRow(label, total, ranks) for label in LABELS if total.label_ns.get(label))


def compute_table(analysis: Analysis) -> Table | None:
    """Return the compute labels, unlabelled work last."""
    rows = []
    for row in analysis.once(label_rows):
        if row.kind == "compute" and row.ns >= MIN_NS_SHOWN:
            rows.append(row)
    rows.sort(key=lambda row: (row.label == "other", -row.ns))
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("of span", "share", value="share"),
        Column("kernels", "count", value="count"),
    )
    loud = [i for i, row in enumerate(rows) if row.loud]
    return make_table(columns, rows, loud=loud, caption=_union_words(analysis))


def exposure_table(analysis: Analysis) -> Table | None:
    """Return communication and copies, the most exposed first."""
    rows = [row for row in analysis.once(label_rows) if row.kind != "compute"]
    rows.sort(key=lambda row: -row.exposed_ns)
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("hidden", "share"),
        Column(
            "exposed",
            "ms",
            note="charged to the first label where two run at once, so that it can be less than what is not hidden",
            value="exposed_ns",
        ),
        Column("of span", "share", 2, value="exposed_share"),
        Column(
            "blocking",
            "ms",
            3,
            note="exposed time on the critical path, over all ranks",
            value="blocking_ns",
        ),
        Column("wait", "ms", 1, value="wait_ns"),
        Column("exposed because", "causes", value=_causes),
        Column("events", "count", 4, value="count"),
    )
    return make_table(columns, rows, caption=_union_words(analysis))


def _causes(row: LabelRow) -> list[tuple[float, str, str]]:
    """Return the largest causes with their shares of the exposed time, and what they mean."""
    causes = []
    for cause, share in row.causes():
        causes.append((share, WORDS.exposure_causes[cause], WORDS.exposure_meanings[cause]))
    return causes


def _union_words(analysis: Analysis) -> str:
    """Return what the times of labels are."""
    steps = analysis.tables["steps"]["step"].n_unique()
    together = f"{counted(steps, 'step')} together" if steps > 1 else ""
    if len(analysis.ranks) > 1:
        of_steps = f", of {together}" if together else ""
        return f"A mean over ranks{of_steps}: union of each label's intervals"
    return f"Union of each label's intervals{', ' if together else ''}{together}"


class HidingRow(msgspec.Struct, frozen=True):
    """How much of one label's time compute hides."""

    label: str
    ns: float
    """Time per rank."""
    hidden: float
    """Share of that time beside compute."""
    by_label: Mapping[str, float]
    """Share of that time beside each label of compute; kernels that run at once count each."""


class HidingMatrix(msgspec.Struct, frozen=True):
    """Which compute hides how much of each label's time, over all ranks."""

    labels: tuple[str, ...]
    """Labels of compute that hide enough to have a column."""
    rows: tuple[HidingRow, ...]


def hiding_matrix(analysis: Analysis) -> HidingMatrix | None:
    """Return which compute hides how much of each label's time; None if there is nothing to hide."""
    total = analysis.total
    ranks = recorded_ranks(analysis)
    hidden_by_label = {
        hidden_label: hidden_by
        for hidden_label, hidden_by in total.hidden_by_ns.items()
        if total.label_ns.get(hidden_label)
    }
    hiding = []
    for name in LABELS:
        if any(
            by.get(name, 0) >= MIN_COLUMN_SHARE * total.label_ns[label]
            for label, by in hidden_by_label.items()
        ):
            hiding.append(name)
    rows = []
    for label, by in hidden_by_label.items():
        ns = total.label_ns[label]
        shares = {name: by.get(name, 0) / ns for name in hiding}
        rows.append(HidingRow(label, ns / ranks, total.overlap.get(label) or 0.0, shares))
    return HidingMatrix(tuple(hiding), tuple(rows)) if rows else None


def matrix_table(analysis: Analysis) -> Table | None:
    """Return which compute hides how much of each label's time; None if none hides any."""
    matrix = analysis.once(hiding_matrix)
    if matrix is None or not matrix.labels:
        return None
    columns = [
        Column("label", "label"),
        Column("time per rank", "ms", 9, terminal_heading="ms per rank", value="ns"),
        Column("hidden", "heat"),
    ]
    for i, name in enumerate(matrix.labels):
        by_name = partial(_share_hidden_by, name)
        columns.append(Column(f"by {name}", "heat", min(i, 8), value=by_name))
    over = ", over all ranks," if len(analysis.ranks) > 1 else ""
    meaning = f"share of each row's own time{over} that compute covers; kernels that run at once count each"
    return make_table(columns, matrix.rows, notes=(meaning,))


def _share_hidden_by(label: str, row: HidingRow) -> float:
    """Return the share of a row's time that is beside one label of compute."""
    return row.by_label[label]


def beside_table(analysis: Analysis) -> Table | None:
    """Return which compute (label and module) ran beside each label in each pass, the largest first.

    >>> from tracekit import analyze
    >>> beside_table(analyze("sample_traces/1f1b")).rows[0][3]
    'attention forward 1.3 %'
    """
    # One row per rank, label, pass and hiding compute. ``of_ns`` is the label's whole time on that
    # rank and repeats in each of its rows, so it is summed once per rank. Compute beside less than
    # 1 % of the label's time is left out.
    hidden = analysis.tables["hidden"].filter("detail", pl.col("step").is_null())
    keys = ["label", "pass"]
    label_times = hidden.unique(["rank", *keys]).group_by(keys).agg(pl.col("of_ns").sum())
    sums = (
        hidden.group_by(*keys, "by", "by_module", maintain_order=True)
        .agg(pl.col("ns").sum())
        .join(label_times, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("ns") > 0, pl.col("ns") * 100 >= pl.col("of_ns"))
    )
    rows = []
    for part in sums.partition_by(keys, maintain_order=True):
        largest = part.sort("ns", descending=True).head(MAX_BESIDE).rows(named=True)
        parts = []
        for row in largest:
            words = (row["by_module"], row["by"], percent(row["ns"], row["of_ns"]))
            parts.append(" ".join(filter(None, words)))
        first = largest[0]
        rows.append(
            (
                first["label"],
                first["pass"],
                first["of_ns"] / max(1, len(analysis.ranks)),
                ", ".join(parts),
            )
        )
    columns = (
        Column("label", "label"),
        Column("pass"),
        Column("time per rank", "ms", terminal_heading="ms per rank"),
        Column("beside it, share of the label's time"),
    )
    return make_table(
        columns,
        rows,
        caption="Shares of the label's own time in that pass; kernels that run at once count each",
    )


def hiding_table(analysis: Analysis) -> Table | None:
    """Return how much slower compute ran beside communication.

    None if no kernel ran both beside it and alone.
    """
    hiding = analysis.hiding
    if hiding is None or hiding.extra_ns is None:
        return None
    ranks = max(1, len(analysis.ranks))
    columns = (
        Column("label", "label"),
        Column("kernels", "count"),
        Column("slower by", "share", value=lambda row: row["slowdown"] - 1),
        Column("extra per rank", "ms", value=lambda row: row["extra_ns"] / ranks),
    )
    min_extra_ns = MIN_HIDING_ROW_SHARE * hiding.extra_ns
    labels = [row for row in to_plain_rows(hiding.by_label) if abs(row["extra_ns"]) >= min_extra_ns]
    saved = ms(hiding.saved_ns / ranks)
    cost = ms(hiding.extra_ns / ranks)
    if hiding.net_ns is None:
        balance = f"per rank hiding saved {saved} and cost at least {cost}"
    else:
        # The cost of what could be compared stands for the rest as well.
        whole_cost = ms((hiding.saved_ns - hiding.net_ns) / ranks)
        net = ms(hiding.net_ns / ranks)
        balance = f"per rank hiding saved {saved} and cost {whole_cost}: a net gain of {net}"
    compared = (
        "compared with the same kernel and shape alone: "
        f"{percent(hiding.compared)} of the time beside communication"
    )
    return make_table(columns, labels, notes=(f"{balance}; {compared}",))


OVERLAP_SECTIONS = (
    Section(
        id="compute",
        title="Compute",
        scope="{over}",
        part_of="overlap",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [compute_table(analysis)],
    ),
    Section(
        id="overlap",
        tab="Budget",
        title="Communication and copies: what compute hides",
        scope="{over}",
        name="Overlap",
        about="what ran, and what compute hides",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [exposure_table(analysis)],
    ),
    Section(
        id="beside",
        title="What hides what",
        scope="{over}",
        part_of="overlap",
        build=lambda analysis: [matrix_table(analysis), beside_table(analysis)],
    ),
    Section(
        id="hiding",
        title="What hiding communication costs the compute beside it",
        scope="{over}",
        part_of="overlap",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [hiding_table(analysis)],
    ),
)

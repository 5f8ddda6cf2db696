"""The critical path: what blocks the step, and the path of the slowest step."""

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, join_with_and, ms, percent, ranks_named
from tracekit.analysis import Analysis
from tracekit.classify.messages import list_ranks
from tracekit.documents.analysis import PathSegment
from tracekit.documents.coding import rows as table_rows
from tracekit.graph.critical_path.path import CriticalPath
from tracekit.report.notices import notice_sentence
from tracekit.report.text import shorten_distinct
from tracekit.report.words import WORDS, short_kernel
from tracekit.schema import COMMUNICATION_LABELS, LABEL_WORDS

MAX_HOLDERS = 2
"""Labels that are named; the second only if it holds the path at least half as long as the
first."""
MIN_SHARE_OF_RANKS = 0.5
"""Share of the named labels' time from which the ranks that hold most of it are named."""
MIN_BUSY_SHARE = 0.05
"""Share of the host's time on the path from which it is said that the GPU had other work
meanwhile."""
MIN_OPEN_SHARE = 0.1
"""Share of the path from which it is said here that clocks leave its rank open; the path's own
notes always say it."""
MAX_NAME_CHARACTERS = 48
MAX_OPERATORS = 2
"""Innermost operators around a launch that are named."""
_WRAPPER_NAMES = ("record_param_comms", "autograd::engine::evaluate_function")
"""Operators that say nothing about what they wrap."""
_TRANSFER_KINDS = ("collective", "message")
MAX_SEGMENTS = 10
"""Segments that are listed, the longest."""
MAX_PARTS = 6
"""Labels or ranks that are named in a sum."""
MIN_PART_SHARE = 1 / 200
"""Share of the path from which a label or rank is named in a sum."""


class LongestPiece(PathSegment, frozen=True, kw_only=True):
    """The piece of the path that blocks longest."""

    chain: str | None
    """Operators around its launch, outermost first."""
    launched: str | None
    """GPU event that work of the host launched."""
    ns: int
    """Length of the piece."""
    idle_gpu_ns: int
    """Of the host's work, the time in which the GPU of its rank ran nothing; of other work all of it."""


class Blocking(msgspec.Struct, frozen=True):
    """The sentence, and the piece of the path that it names."""

    sentence: str
    piece: LongestPiece | None
    """The piece of the path that the sentence names; None if it names none."""
    clock_doubt: str = ""
    """What clocks leave open, as a sentence after a space; empty if nothing."""

    @property
    def text(self) -> str:
        """The sentence with what clocks leave open."""
        return self.sentence + self.clock_doubt


def blocking(analysis: Analysis) -> Blocking | None:
    """Return what blocks the step; None where the path is not known well enough to say it.

    Nothing is said if the path was not followed to the step's start, if it runs longest through
    time of unknown cause, or through communication of which no peer's trace tells whether it was
    waiting.
    """
    path = analysis.walked_path
    if path is None or path.broken or path.pieces.is_empty():
        return None
    pieces = path.pieces.with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns"),
        holder=pl.coalesce("label", "kind"),
        number=pl.int_range(pl.len()),
    )
    totals = (
        pieces.group_by("holder")
        .agg(pl.col("ns").sum())
        .sort("ns", "holder", descending=[True, False])
    )
    first, first_ns = totals.row(0)
    names = [
        name
        for name, ns in totals.head(MAX_HOLDERS).iter_rows()
        if 2 * ns >= first_ns and name != "unknown"
    ]
    if first == "unknown" or not path.unknown_labels.isdisjoint(names):
        return None
    blocking_pieces = pieces.filter(pl.col("holder").is_in(names))
    holders = [WORDS.path_holders.get(name) or f"{LABEL_WORDS[name]} ({name})" for name in names]
    words = join_with_and(holders)
    share = percent(int(blocking_pieces["ns"].sum()), int(pieces["ns"].sum()))
    text = f"By {words}: {share} of the critical path{_ranks(analysis, path, blocking_pieces)}"
    piece = _longest_piece(blocking_pieces)
    text += "." if piece is None else f"; the longest of these: {_describe(pieces, piece)}."
    return Blocking(
        text + _unfollowed(path, totals), piece, _clock_doubt(path, int(pieces["ns"].sum()))
    )


def _ranks(analysis: Analysis, path: CriticalPath, blocking_pieces: pl.DataFrame) -> str:
    """Return the ranks that take part in most of this work.

    Empty if all do, or if clocks leave it open.

    A collective runs on all ranks of its group alike: the group is named, not the rank along which
    the path runs.
    """
    ranks = sorted(result.rank for result in analysis.rank_results)
    operations = analysis.clocks.align(analysis.tables["operations"], "start_ns", "end_ns").select(
        "rank",
        pl.col("label").cast(pl.String),
        "group_ranks",
        middle_ns="start_ns",
        operation_end_ns="end_ns",
    )
    # The operation of a piece is the last of its label that started before the middle of the piece
    # on its rank.
    own_rank = pl.format("[{}]", "rank")
    grouped = (
        blocking_pieces.with_columns(middle_ns=(pl.col("start_ns") + pl.col("end_ns")) // 2)
        .sort("middle_ns")
        .join_asof(
            operations.sort("middle_ns"),
            on="middle_ns",
            by=["rank", "label"],
            check_sortedness=False,
        )
        .with_columns(
            members=pl.when(pl.col("kind") == "collective").then("group_ranks").otherwise(own_rank)
        )
        .group_by("members", "kind")
        .agg(pl.col("ns").sum())
        .sort("ns", "members")
    )
    members, kind, ns = grouped.row(-1)
    is_open = kind != "collective" and len(path.candidates) > 1
    if members is None or is_open or ns < MIN_SHARE_OF_RANKS * int(blocking_pieces["ns"].sum()):
        return ""
    numbers = sorted(list_ranks(members))
    return "" if numbers == ranks or not numbers else f", mostly on {ranks_named(numbers)}"


def _longest_piece(pieces: pl.DataFrame) -> LongestPiece | None:
    """Return the piece that blocks longest.

    None if its cause is unknown, or if it may lie on another rank. Of the host's work only the time
    counts in which the GPU of its rank ran nothing.
    """
    is_host = pl.col("kind") == "host"
    counted_pieces = pieces.with_columns(
        idle_gpu_ns=pl.when(is_host).then("idle_ns").otherwise("ns")
    )
    (longest,) = table_rows(counted_pieces.top_k(1, by="idle_gpu_ns"), LongestPiece)
    # All members take part in a transfer.
    is_open = longest.uncertain and longest.kind not in _TRANSFER_KINDS
    return None if longest.kind == "unknown" or is_open else longest


def _describe(pieces: pl.DataFrame, piece: LongestPiece) -> str:
    """Return one piece of the path in words: what ran, where, when, and what launched it."""
    of_step = pieces.filter(pl.col("step").eq_missing(piece.step))
    step = f"step {piece.step}" if pieces["step"].n_unique() > 1 else "the step"
    start_ns = piece.start_ns - int(of_step["start_ns"].to_numpy().min())
    when = f"{ms(piece.ns)} at {ms(start_ns) if start_ns else 'the start'} of {step}"
    kernel = _kernel_name(piece.what)
    if piece.kind == "host":
        target = _kernel_name(piece.launched) or "the next work"
        busy_ns = piece.ns - piece.idle_gpu_ns
        meanwhile = (
            f" (its GPU worked in {ms(busy_ns)} of that)"
            if busy_ns > MIN_BUSY_SHARE * piece.ns
            else ""
        )
        text = f"the host of rank {piece.rank}, {when}{meanwhile}"
        if piece.launched is None:
            return f"{text}, after the last GPU work of the step"
        return f"{text}, before it launched {target}{_operators(piece, ' in ')}"
    is_kernel = piece.label in COMMUNICATION_LABELS or piece.kind == "copy"
    name, mostly = (kernel, "") if is_kernel else (piece.label, f", mostly {kernel}")
    return f"{name} on rank {piece.rank}, {when}{mostly}{_operators(piece, ', launched by ')}"


def _kernel_name(name: str | None) -> str:
    """Return a kernel's name without template arguments, short enough for a sentence."""
    (short,) = shorten_distinct(
        [short_kernel(name or "").partition("<")[0]], most=MAX_NAME_CHARACTERS
    )
    return short


def _operators(piece: LongestPiece, before: str) -> str:
    """Return the innermost operators around the launch; empty if none was recorded."""
    names = innermost_operators(piece.chain)
    return f"{before}{names}" if names else ""


def innermost_operators(chain: str | None) -> str:
    """Return the innermost operators of a chain that say what was called.

    >>> innermost_operators("Model > _AllToAll > c10d::alltoall_base_ > record_param_comms")
    '_AllToAll > c10d::alltoall_base_'
    """
    names = [
        name for name in (chain or "").split(" > ") if name and not name.startswith(_WRAPPER_NAMES)
    ]
    return " > ".join(names[-MAX_OPERATORS:])


def _unfollowed(path: CriticalPath, totals: pl.DataFrame) -> str:
    """Return in which communication the path could not be followed to other ranks.

    Empty if in none.
    """
    ns_of: dict[str, int] = dict(totals.iter_rows())
    unfollowed = [label for label in sorted(path.unknown_labels) if ns_of.get(label)]
    if not unfollowed:
        return ""
    share = percent(sum(ns_of[label] for label in unfollowed), sum(ns_of.values()))
    return (
        f" Whether {join_with_and(unfollowed)} on it ({share}) waits for another rank is not known."
    )


def _clock_doubt(path: CriticalPath, path_ns: int) -> str:
    """Return the share of the path for which clocks leave its rank open.

    Empty if that is little.
    """
    if len(path.candidates) < 2 or path.uncertain_ns < MIN_OPEN_SHARE * path_ns:
        return ""
    return (
        f" For {percent(path.uncertain_ns, path_ns)} of it clocks leave open which rank it follows."
    )


class PathRow(PathSegment, frozen=True, kw_only=True):
    """A segment of the critical path of one step."""

    from_ns: int
    """Start, from that of the step."""
    ns: int
    """Length."""
    share: float
    """Share of the step."""
    chain: str | None
    """Operators around its launch, outermost first."""

    @property
    def name(self) -> str:
        """What ran; of work of the host, what it launched at its end."""
        if self.kind not in ("host", "launch"):
            return short_kernel(self.what or "")
        launched = innermost_operators(self.chain) or self.what
        return f"{'before' if self.kind == 'host' else 'of'} {launched}" if launched else ""


class PathView(msgspec.Struct, frozen=True):
    """The critical path of the slowest step."""

    step: int | None
    rows: tuple[PathRow, ...]
    """The longest segments, in order of time."""
    notes: tuple[str, ...]
    """The share that the rows cover, the whole path by label and by rank, and what is uncertain
    about it."""


def path_view(analysis: Analysis) -> PathView | None:
    """Return the path of the slowest step; None if it was not asked for or there is none."""
    path = analysis.critical
    if path is None or path.segments.is_empty():
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    steps = path.segments.group_by("step", maintain_order=True).agg(span=length.sum())
    step, span_ns = steps.sort("span", descending=True).row(0)
    segments = path.segments.filter(pl.col("step").eq_missing(step)).with_columns(
        ns=length,
        from_ns=pl.col("start_ns") - pl.col("start_ns").min(),
        share=length / max(span_ns, 1),
    )
    longest = segments.sort("ns", descending=True).head(MAX_SEGMENTS).sort("start_ns")
    of_step = ""
    in_steps = ""
    if len(steps) > 1:
        of_step = f" of step {step}, the longest of {len(steps)}"
        in_steps = f" {counted(len(steps), 'step')}"
    totals = path.totals()
    by_rank = {f"rank {key}" if key.isdigit() else key: ns for key, ns in totals["by_rank"].items()}
    notes = [
        f"the {len(longest)} longest of {counted(len(segments), 'segment')}{of_step}: "
        f"{percent(int(longest['ns'].sum()), span_ns)} of the step's {ms(span_ns)}",
        f"in all{in_steps}: {_shares(totals['by_label'])}",
        f"by rank: {_shares(by_rank)}",
    ]
    hosts = path.pieces.filter(pl.col("kind") == "host").with_columns(ns=length)
    host_ns = int(hosts["ns"].sum())
    if host_ns >= MIN_PART_SHARE * sum(totals["by_kind"].values()):
        busy = percent(host_ns - int(hosts["idle_ns"].sum()), host_ns)
        notes.append(
            f"host: the work that follows waited for its launch; the GPU had other work in {busy} of that time"
        )
    if "cell" in longest["kind"]:
        notes.append(
            "a cell is named by stage, op and micro-batch: 0F3 is stage 0's forward of micro-batch 3"
        )
    notes += [notice_sentence(notice) for notice in path.notices]
    return PathView(step, tuple(table_rows(longest, PathRow)), tuple(notes))


def _shares(parts: Mapping[str, int]) -> str:
    """Return the first parts with their shares of the sum, without small ones."""
    total = sum(parts.values())
    first = list(parts.items())[:MAX_PARTS]
    shares = [f"{name} {percent(ns, total)}" for name, ns in first if ns >= MIN_PART_SHARE * total]
    return ", ".join(shares)

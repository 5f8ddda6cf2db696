"""Changes to a run ("what if"): each prints itself as text and applies itself to a graph; text is parsed into them.

``dp_comm x0.5`` (a label, module, operator or kernel takes half its time), ``rank 2 like others``, ``ranks 1, 3
like others``, ``no host delay``, ``no data loading`` (and other activities of the host, ``HOST_CHANGES``), ``no
launch delay``, ``links x2`` (twice the bandwidth), ``hide dp_comm``, ``balance``, ``microbatches 16``, ``schedule
zb-v``; and the remedies of ``graph.remedies``, such as ``bf16`` or ``fused attention``.

What people type is text, and is parsed where they type it; everything else makes and hands on these objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.text import ranks_named
from tracekit.errors import OptionError, TracekitError
from tracekit.graph.constants import MIN_FACTOR, MIN_SHARE_OF_CARRIED_COPIES, NEAREST_FORMS_NAMED
from tracekit.graph.rank_events import BEFORE
from tracekit.graph.remedies import REMEDY_CHANGES, change_factors, select_remedies
from tracekit.metrics.alternatives.messages import REDUCTIONS
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.pipeline.schedules.registry import describe
from tracekit.schema import COMMUNICATION_LABELS, LABELS

if TYPE_CHECKING:
    from tracekit.graph.changes import ChangedGraph
    from tracekit.graph.event_graph import EventGraph

HOST_CHANGES = {
    "compile": "no compilation",
    "data_loading": "no data loading",
    "unused_parameters": "no search for unused parameters",
    "pageable_copy": "no pageable copies",
    "allocator": "no allocations",
    "host_sync": "no synchronisation",
    "host_compute": "no host compute",
    "python": "no python",
}
"""Change that takes an activity of the host (``metrics.host.time_by_activity``) out of the step."""
CHANGE_FORMS: Mapping[str, str] = {
    "NAME x0.5": "a label, module, operator or kernel takes half its time",
    "LABEL reductions x0.5": "its reductions take half their time; what gathers stays",
    "links x2": "links have twice the bandwidth",
    "rank N like others": "a rank takes as long as the others; also ranks 1, 3",
    "links of rank N like others": "its links are as fast as those of the others",
    "hide LABEL": "communication runs beside compute",
    "balance": "all ranks have the same work",
    "schedule NAME": "the pipeline runs another schedule, such as zb-v (`tracekit schedule --list`)",
    "microbatches N": "the pipeline runs another number of micro-batches",
    "no host delay": "the host is never late",
    "no launch delay": "launches take no time",
    "no synchronisation in NAME": "the host no longer waits for the GPU in one operator; its other waits stay",
    **dict.fromkeys(HOST_CHANGES.values(), "the host spends no time on it"),
    **REMEDY_CHANGES,
}
"""Every form of a change, and what it means."""


def nearest_forms(text: str) -> list[str]:
    """Return the forms of a change that are nearest to a text that is none.

    >>> nearest_forms("fused optimiser")[0], nearest_forms("rank two like others")[0]
    ('fused optimizer', 'rank N like others')
    """

    def likeness(form: str) -> float:
        return SequenceMatcher(None, text.lower(), form.lower()).ratio()

    return sorted(CHANGE_FORMS, key=likeness, reverse=True)[:NEAREST_FORMS_NAMED]


class RefusedError(TracekitError):
    """The trace has no evidence for an answer; the message is the reason."""


class Change(msgspec.Struct, frozen=True):
    """A change to a run; ``str`` is its text."""

    @property
    def parts(self) -> tuple[Change, ...]:
        """The single changes that it consists of."""
        return (self,)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that it names."""
        return ()

    def apply(self, changed: ChangedGraph) -> None:
        """Make the change to a graph; raise ``RefusedError`` where the trace has no evidence for an answer."""
        raise NotImplementedError


class Together(Change, frozen=True):
    """Several changes at once.

    >>> str(Together((Hidden("pp_comm"), LikeOthers((1, 3)))))
    'hide pp_comm, ranks 1, 3 like others'
    """

    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.changes))

    @property
    def parts(self) -> tuple[Change, ...]:
        return tuple(part for change in self.changes for part in change.parts)

    @property
    def ranks(self) -> tuple[int, ...]:
        return ranks_of_changes(self.changes)

    def apply(self, changed: ChangedGraph) -> None:
        for change in self.changes:
            change.apply(changed)


class Scaled(Change, frozen=True):
    """What is called by a name takes a multiple of its time; of communication, the transfer."""

    name: str
    factor: float

    def __str__(self) -> str:
        return f"{self.name} x{_factor_text(self.factor)}"

    def apply(self, changed: ChangedGraph) -> None:
        events = _select(changed.graph, self.name)
        _require_known_transfers(changed, events)
        changed.factor[events] *= self.factor


class FewerReductions(Change, frozen=True):
    """The reductions of a label take a multiple of their transfers; what gathers stays."""

    label: str
    factor: float

    def __str__(self) -> str:
        return f"{self.label} reductions x{_factor_text(self.factor)}"

    def apply(self, changed: ChangedGraph) -> None:
        graph = changed.graph
        if self.label not in LABELS or not graph.has_label(self.label).any():
            raise _unknown_name_error(graph, self.label, "label")
        names = graph.events["name"].unique().drop_nulls()
        reduces = names.filter(names.cast(pl.String).str.contains(REDUCTIONS))
        events = graph.has_label(self.label) & (
            graph.events["name"].is_in(reduces.implode()).fill_null(False).to_numpy()
        )
        if not events.any():
            raise RefusedError(f"the names of this run's {self.label} do not tell reductions apart")
        _require_known_transfers(changed, events)
        changed.factor[events] *= self.factor


class FasterLinks(Change, frozen=True):
    """Links have a multiple of their bandwidth."""

    factor: float

    def __str__(self) -> str:
        return f"links x{_factor_text(self.factor)}"

    def apply(self, changed: ChangedGraph) -> None:
        events = changed.graph.has_label(*COMMUNICATION_LABELS)
        if not events.any():
            raise RefusedError("there is no communication in this run")
        _require_known_transfers(changed, events)
        changed.factor[events] /= self.factor
        changed.rests_on.append("transfers are all bandwidth, no latency")


class Hidden(Change, frozen=True):
    """The transfers of a label run beside compute, once all other changes are made (``ChangedGraph.hide_labels``).

    What no compute can hide is still waited for, and the step still takes at least as long as the
    transfers do.
    """

    label: str

    def __str__(self) -> str:
        return f"hide {self.label}"

    def apply(self, changed: ChangedGraph) -> None:
        graph = changed.graph
        if self.label not in LABELS or not graph.has_label(self.label).any():
            raise _unknown_name_error(graph, self.label, "label")
        _require_known_transfers(changed, graph.has_label(self.label))
        if self.label in changed.hidden:
            return
        changed.hidden.append(self.label)
        changed.rests_on.append(
            f"{self.label} runs beside compute that hides nothing yet, whatever data it needs; late ranks are still "
            "waited for"
        )


class NoHostDelay(Change, frozen=True):
    """No event waits for its launch."""

    def __str__(self) -> str:
        return "no host delay"

    def apply(self, changed: ChangedGraph) -> None:
        if changed.graph.events["launch_ns"].is_null().all():
            raise RefusedError("the trace has no launches: record CPU activities as well")
        changed.waits_for_launch[:] = False
        changed.host_factor[:] = 1.0
        changed.rests_on.append(
            "everything is launched before it could start, whatever the host does between"
        )


class NoLaunchDelay(Change, frozen=True):
    """The host launches in no time; what else it does, and what it waits for, stays."""

    def __str__(self) -> str:
        return "no launch delay"

    def apply(self, changed: ChangedGraph) -> None:
        if changed.graph.events["launch_ns"].is_null().all():
            raise RefusedError("the trace has no launches: record CPU activities as well")
        changed.removed.add("launch_bound")
        changed.rests_on.append("launching takes the host no time; what else it does takes as long")


class WithoutActivity(Change, frozen=True):
    """The host does no longer what is called by a code of ``HOST_CHANGES``: its time, and waits for the GPU in it."""

    code: str

    def __str__(self) -> str:
        return HOST_CHANGES[self.code]

    def apply(self, changed: ChangedGraph) -> None:
        code = self.code
        work = changed.graph.host_work
        if work.is_empty():
            raise RefusedError("the trace does not show what the host does: record CPU activities")
        if not (work["code"] == code).any():
            raise RefusedError("the host does nothing of that kind between launches of this run")
        changed.removed.add(code)
        copies = changed.graph.is_pageable_copy
        if code == "host_compute":
            carried = copies & _copies_of_host_compute(changed.graph)
            work_ns = changed.graph.work_ns
            if work_ns[carried].sum() > MIN_SHARE_OF_CARRIED_COPIES * work_ns[copies].sum():
                changed.removed.add("pageable_copy")
                changed.factor[carried] = 0.0
                changed.rests_on.append("what the CPU computes is neither copied to it nor back")
        if code == "pageable_copy":
            changed.factor[copies] = 0.0
            changed.rests_on.append(
                "copies from pinned memory run before they are needed, beside compute"
            )
        else:
            changed.rests_on.append(f"the host takes no time for it ({HOST_CHANGES[code]})")


class WithoutWaitsIn(Change, frozen=True):
    """The host no longer waits for the GPU where one operator asks for it; all its other waits stay."""

    op: str

    def __str__(self) -> str:
        return f"no synchronisation in {self.op}"

    def apply(self, changed: ChangedGraph) -> None:
        asked = changed.graph.waiting_operators
        if not asked:
            raise RefusedError("the host waits for the GPU nowhere between launches of this run")
        if self.op not in asked:
            raise OptionError(
                f"the host does not wait for the GPU in {self.op!r}",
                hint=f"it waits in {', '.join(sorted(asked))}",
            )
        changed.removed_waits.add(self.op)
        changed.rests_on.append("the host waits for the GPU wherever else it does")


class LikeOthers(Change, frozen=True):
    """Work of each label, and the host, of some ranks take the time that they take on the others, per step."""

    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_ranks_text(self.numbers)} like others"

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.numbers

    def apply(self, changed: ChangedGraph) -> None:
        graph = changed.graph
        ranks = _indices_of_ranks(changed, self.numbers)
        step = graph.step_index.astype(np.int64)
        compute = graph.has_label(*COMPUTE_SET)
        work_ns = (graph.end - graph.start) * changed.factor * compute
        key = step * len(LABELS) + graph.label
        factor = changed.scale_ranks(ranks, key, work_ns, like_others=True)
        changed.factor[compute] *= factor[compute]
        # A host that is late less often than others stays as it is.
        late = graph.launched_late_ns > 0
        late_ns = graph.launched_late_ns * changed.host_factor
        host_factor = changed.scale_ranks(ranks, step, late_ns, like_others=True)
        changed.host_factor[late] *= np.minimum(host_factor[late], 1.0)
        changed.rests_on.append(
            "in each step the rank's work and host take the median of the other ranks"
        )


class LinksLikeOthers(Change, frozen=True):
    """The transfers of each label of some ranks take the time that they take on the others, per step."""

    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"links of {_ranks_text(self.numbers)} like others"

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.numbers

    def apply(self, changed: ChangedGraph) -> None:
        graph = changed.graph
        ranks = _indices_of_ranks(changed, self.numbers)
        communication = graph.has_label(*COMMUNICATION_LABELS)
        _require_known_transfers(changed, communication)
        key = graph.step_index.astype(np.int64) * len(LABELS) + graph.label
        factor = changed.scale_ranks(ranks, key, changed.work_ns * communication, like_others=True)
        # A link that is faster than those of others stays as it is.
        changed.factor[communication] *= np.minimum(factor[communication], 1.0)
        changed.rests_on.append(
            "in each step the rank's transfers take the median of the other ranks"
        )


class Balanced(Change, frozen=True):
    """Work of each label between two dispatches (in each step, without experts) takes the mean over ranks."""

    def __str__(self) -> str:
        return "balance"

    def apply(self, changed: ChangedGraph) -> None:
        graph = changed.graph
        _require_other_ranks(graph)
        # Number of dispatches launched before each event on its rank: ranks of an expert group have the
        # same number.
        order = np.lexsort((np.minimum(graph.launch, graph.start), graph.rank_index))
        count = np.cumsum(graph.has_label("ep_dispatch")[order])
        first = np.searchsorted(graph.rank_index[order], np.arange(len(graph.ranks)))
        section = np.empty(len(order), np.int64)
        section[order] = count - np.concatenate([[0], count])[first][graph.rank_index[order]]
        key = (section * len(graph.steps) + graph.step_index) * len(LABELS) + graph.label
        compute = graph.has_label(*COMPUTE_SET)
        work_ns = (graph.end - graph.start) * changed.factor * compute
        factor = changed.scale_ranks(range(len(graph.ranks)), key, work_ns, like_others=False)
        changed.factor[compute] *= factor[compute]
        changed.rests_on.append(
            "work of a label takes the mean over ranks; kernels scale with their tokens"
        )


class Remedied(Change, frozen=True):
    """A remedy gives events new durations, and takes launches away that disappear (``REMEDY_CHANGES``)."""

    remedy: str
    assumes: str | None = None
    """What is assumed, of a remedy that is not in the list."""

    def __str__(self) -> str:
        return self.remedy

    @property
    def rests_on(self) -> str:
        """What is assumed."""
        return self.assumes or REMEDY_CHANGES.get(self.remedy, self.remedy)

    def apply(self, changed: ChangedGraph) -> None:
        remedies = select_remedies(changed.graph, self.remedy)
        if remedies.is_empty():
            raise RefusedError(f"no GPU work of this run would change ({self.rests_on})")
        factors = change_factors(changed.graph, remedies)
        changed.factor *= factors.likely
        changed.factor_range[0] *= factors.low / np.maximum(factors.likely, MIN_FACTOR)
        changed.factor_range[1] *= factors.high / np.maximum(factors.likely, MIN_FACTOR)
        waits = changed.waits_for_launch
        changed.host_factor[waits] *= factors.host[waits]
        changed.gone[remedies.filter(pl.col("host_share") == 0)["event"].to_numpy()] = True
        not_waited_for = remedies.filter(~pl.col("waits"))["event"].to_numpy()
        changed.unwaited |= np.isin(
            changed.graph.before[BEFORE.index("released_by")], not_waited_for
        )
        changed.rests_on.append(self.rests_on)


class OtherSchedule(Change, frozen=True):
    """The pipeline runs another schedule."""

    name: str

    def __str__(self) -> str:
        return f"schedule {self.name}"

    def apply(self, changed: ChangedGraph) -> None:
        changed.schedules.append(self.name)


class OtherMicrobatches(Change, frozen=True):
    """The pipeline runs another number of micro-batches."""

    count: int

    def __str__(self) -> str:
        return f"microbatches {self.count}"

    def apply(self, changed: ChangedGraph) -> None:
        changed.microbatches.append(self.count)


def _factor_text(factor: float) -> str:
    """Return a factor as it is typed.

    >>> _factor_text(0.5), _factor_text(2.0), _factor_text(0.0001)
    ('0.5', '2', '0.0001')
    """
    return f"{factor:.9f}".rstrip("0").rstrip(".")


def _ranks_text(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


# Text into changes.


_LIKE_OTHERS = r"(?P<links>links of )?ranks? (?P<ranks>\d{1,9}(, ?\d{1,9})*) like others"
# At most nine digits: a longer number is none of a run, and Python converts none of thousands.
_NUMBER = r"(?P<factor>\d{1,9}(\.\d{1,9})?)"
_CODE_OF_CHANGE = {text: code for code, text in HOST_CHANGES.items()}
_FORMS: Mapping[str, Callable[[re.Match[str]], Change]] = {
    str(NoHostDelay()): lambda _: NoHostDelay(),
    str(NoLaunchDelay()): lambda _: NoLaunchDelay(),
    **dict.fromkeys(
        HOST_CHANGES.values(), lambda match: WithoutActivity(_CODE_OF_CHANGE[match.string])
    ),
    r"no synchronisation in (?P<op>\S.*)": lambda match: WithoutWaitsIn(match["op"]),
    **dict.fromkeys(REMEDY_CHANGES, lambda match: Remedied(match.string)),
    str(Balanced()): lambda _: Balanced(),
    r"micro-?batches (?P<count>\d{1,9})": lambda match: OtherMicrobatches(int(match["count"])),
    r"schedule (?P<name>\S+)": lambda match: OtherSchedule(describe(match["name"]).name),
    _LIKE_OTHERS: lambda match: (LinksLikeOthers if match["links"] else LikeOthers)(
        tuple(int(number) for number in match["ranks"].split(","))
    ),
    r"hide (?P<label>\S+)": lambda match: Hidden(match["label"]),
    rf"(?P<label>\w+) reductions [x×] ?{_NUMBER}": lambda match: FewerReductions(
        match["label"], float(match["factor"])
    ),
    rf"links [x×] ?{_NUMBER}": lambda match: FasterLinks(float(match["factor"])),
    rf"(?P<name>.+) [x×] ?{_NUMBER}": lambda match: Scaled(match["name"], float(match["factor"])),
}
"""Forms of a change, and what they are; the first that fits counts."""


def parse_change(text: str) -> Change:
    """Return the change that a text names; of several, separated by commas, all of them together.

    A comma may also be part of a name: what is before one is a change, or the comma is none between changes.

    >>> parse_change("hide pp_comm, ranks 1, 3 like others").parts
    (Hidden(label='pp_comm'), LikeOthers(numbers=(1, 3)))
    >>> parse_change("void foo<float, at::native::X> x0.5")
    Scaled(name='void foo<float, at::native::X>', factor=0.5)
    >>> parse_change("rank two like others")
    Traceback (most recent call last):
    tracekit.errors.OptionError: --change 'rank two like others' is not a change that is known (the nearest are: \
rank N like others, links of rank N like others, clip together; --list-changes names all)
    """
    words = " ".join(text.split())
    commas = [position for position, character in enumerate(words) if character == ","]
    # Changes of the text from each place where one may begin on; None if it is not made of changes.
    changes_from: dict[int, tuple[Change, ...] | None] = {len(words) + 1: ()}
    for start in reversed([0, *(comma + 1 for comma in commas)]):
        changes_from[start] = None
        for end in (*(comma for comma in commas if comma >= start), len(words)):
            rest = changes_from[end + 1]
            change = None if rest is None else _parse_single(words[start:end].strip())
            if rest is not None and change is not None:
                changes_from[start] = (change, *rest)
                break
    changes = changes_from[0]
    if changes is None:
        raise _unknown_change_error(words)
    return changes[0] if len(changes) == 1 else Together(changes)


def _parse_single(words: str) -> Change | None:
    """Return the change of a text that names one; None if it is not known."""
    for pattern, change_of in _FORMS.items():
        if match := re.fullmatch(pattern, words):
            if match.groupdict().get("factor") and not float(match["factor"]):
                raise OptionError(
                    f"--change {words!r}: the factor must be above 0", hint="write it as NAME x0.5"
                )
            return change_of(match)
    return None


def _unknown_change_error(words: str) -> OptionError:
    """Return the error about the first part of a text that is no change."""
    parts = re.split(r",(?!\s*\d)\s*", words)  # a number is of a list of ranks
    unknown = next((part for part in parts if _parse_single(part) is None), words)
    nearest = ", ".join(nearest_forms(unknown))
    return OptionError(
        f"--change {unknown!r} is not a change that is known",
        hint=f"the nearest are: {nearest}; --list-changes names all",
    )


def ranks_of_changes(changes: Iterable[Change]) -> tuple[int, ...]:
    """Return the ranks that changes name, ascending.

    >>> ranks_of_changes([parse_change("hide pp_comm, ranks 3, 1 like others"), LikeOthers((1,))])
    (1, 3)
    """
    return tuple(sorted({rank for change in changes for rank in change.ranks}))


# What changes ask a graph for.


def _require_known_transfers(changed: ChangedGraph, events: Bools) -> None:
    """Refuse where no peer tells how much of the communication among *events* is waiting.

    Note where some do not.
    """
    graph = changed.graph
    communication = events & graph.has_label(*COMMUNICATION_LABELS)
    is_matched = np.diff(graph.first_match) > 0
    if communication.any() and not (communication & is_matched).any():
        raise RefusedError(
            "no peer's trace tells how much of this communication is waiting: give all ranks"
        )
    if (communication & ~is_matched).any():
        changed.rests_on.append("communication whose peers have no trace never waits")


def _select(graph: EventGraph, name: str) -> Bools:
    """Return the events of a label, a module, an operator or a kernel.

    Of kernels, a part of the name is enough.
    """
    for column, is_part in (
        ("label", False),
        ("module", False),
        ("op", False),
        ("name", False),
        ("name", True),
    ):
        distinct = graph.events[column].unique().drop_nulls()
        texts = distinct.cast(pl.String)
        matches = (
            texts.str.contains(name, literal=True)
            if is_part
            else texts.str.to_lowercase() == name.lower()
        )
        if matches.any():
            return (
                graph.events[column]
                .is_in(distinct.filter(matches).implode())
                .fill_null(False)
                .to_numpy()
            )
    raise _unknown_name_error(graph, name, "label", "module")


def _unknown_name_error(graph: EventGraph, name: str, *columns: str) -> OptionError:
    names = {}
    for column in columns:
        names[column] = graph.events[column].unique().drop_nulls().cast(pl.String).sort().to_list()
    present = "; ".join(
        f"{column}s {', '.join(values)}" for column, values in names.items() if values
    )
    return OptionError(f"nothing in this run is called {name!r}", hint=f"there are {present}")


def _copies_of_host_compute(graph: EventGraph) -> Bools:
    """Return the events launched right before or right behind operators on the CPU, of which copies carry the data."""
    computing = graph.host_work.filter(pl.col("code") == "host_compute")
    following = computing["event"].unique().to_numpy()
    before = graph.before[BEFORE.index("launch_before")][following]
    beside = np.zeros(len(graph.start), np.bool_)
    beside[following] = True
    beside[before[before >= 0]] = True
    return beside


def _indices_of_ranks(changed: ChangedGraph, numbers: Sequence[int]) -> list[int]:
    """Return where ranks stand in the graph; those whose events are not replayed are left out."""
    graph = changed.graph
    for rank in numbers:
        if rank not in graph.ranks and rank not in graph.ranks_left_out:
            raise OptionError(
                f"there is no rank {rank} in this run", hint=f"there are {ranks_named(graph.ranks)}"
            )
    _require_other_ranks(graph)
    ranks = [graph.ranks.index(rank) for rank in numbers if rank in graph.ranks]
    if not ranks:
        raise RefusedError("the rank is not among those whose events are replayed")
    if len(ranks) < len(numbers):
        changed.rests_on.append(
            "of these ranks, those whose events are replayed tell what all of them save"
        )
    return ranks


def _require_other_ranks(graph: EventGraph) -> None:
    """Refuse where it is not known whether ranks waited for each other."""
    if len(graph.ranks) < 2:
        raise RefusedError("there is no other rank's trace to compare with: give all ranks")
    if not len(graph.matches):
        raise RefusedError(
            "no communication could be matched between ranks, so that it is unknown who waited for whom"
        )

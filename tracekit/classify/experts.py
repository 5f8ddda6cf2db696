"""Expert parallelism: which exchange is dispatch and which is combine, and in which pass.

Role and kernel differ: the backward of combine runs a dispatch kernel, and the backward of dispatch a combine kernel.
Plain all-to-alls all look alike; in a layer the forward dispatches, then combines, and the backward does the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.classify._nest import Ints
from tracekit.classify._text import Bools, Text
from tracekit.classify.autograd import Autograd
from tracekit.classify.collectives import Collectives
from tracekit.classify.directions import Directions
from tracekit.classify.ranges import Launches, Ranges

_MAIN = (
    r"::(dispatch|combine)<|::(dispatch|combine)\(|low_latency_(dispatch|combine)|(?i:moe_?(dispatch|combine)_kernel)"
)
_HELPER = r"(?i)notify|layout|cached|barrier|clean_low_latency|encode|get_dispatch"


@dataclass(frozen=True)
class Exchanges:
    """For every GPU event that exchanges tokens with experts: its role in the model and its pass."""

    role: Text  # "dispatch" or "combine"
    direction: Text  # "forward" or "backward"


def comm_passes(
    gpu: pl.DataFrame, ranges: Ranges, launches: Launches, autograd: Autograd, comm: Collectives, directions: Directions
) -> Text:
    """Pass of every communication kernel: the engine's word, else what uses the result, else what made it."""
    site = autograd.site
    mine = comm.library.present
    own = Text.choose(
        len(gpu),
        [
            ("backward", mine & site.map(lambda v: v in ("backward", "recompute"))),
            ("forward", mine & site.map(lambda v: v == "forward")),
        ],
    )
    waits = _wait_times(ranges, launches, comm)
    values = directions.value
    passes = values.replace(["backward" if v in ("backward", "wgrad") else v for v in values.values])
    used = _known_after(launches, passes, np.where(waits >= 0, waits, launches.at))
    made = _known_before(launches, passes)
    after = used.where(mine & (waits >= 0)).where(used.map(lambda v: v in ("forward", "backward")))
    before = made.where(mine).where(made.map(lambda v: v in ("forward", "backward")))
    return own.fill(after).fill(before)


def _wait_times(ranges: Ranges, launches: Launches, comm: Collectives) -> Ints:
    """When the host waited for each kernel: the k-th wait on a group answers its k-th call. -1 where it did not."""
    out = np.full(len(launches.at), -1, np.int64)
    collective = Text.of(ranges.frame["collective"])
    waits = np.flatnonzero(collective.map(lambda v: v == "wait"))
    rows = np.flatnonzero(comm.library.present & (launches.at >= 0) & comm.group.present)
    if not len(waits) or not len(rows):
        return out
    rows = rows[np.argsort(launches.at[rows], kind="stable")]
    asked = pl.DataFrame({"group": comm.group.take(rows).series("group"), "row": rows, "at": launches.at[rows]})
    waited = pl.DataFrame({"group": ranges.frame["group"].gather(waits), "wait": ranges.start[waits]}).sort("wait")
    place = pl.int_range(pl.len()).over("group").alias("place")
    both = asked.with_columns(place).join(waited.with_columns(place), on=("group", "place"))
    # Groups waited for less often than called on are not in step.
    counts = asked.group_by("group").len("asked").join(waited.group_by("group").len("waited"), on="group")
    steady = both.join(counts.filter(pl.col("asked") == pl.col("waited")), on="group").filter(
        pl.col("wait") >= pl.col("at")
    )
    out[steady["row"].to_numpy()] = steady["wait"].to_numpy()
    return out


def _known_after(launches: Launches, values: Text, at: Ints) -> Text:
    known = np.flatnonzero(values.present & (launches.at >= 0))
    known = known[np.argsort(launches.at[known], kind="stable")]
    place = np.searchsorted(launches.at[known], at, side="right")
    ok = (place < len(known)) & (at >= 0)
    return values.take(np.where(ok, np.append(known, -1)[place], -1))


def _known_before(launches: Launches, values: Text) -> Text:
    known = np.flatnonzero(values.present & (launches.at >= 0))
    known = known[np.argsort(launches.at[known], kind="stable")]
    place = np.searchsorted(launches.at[known], launches.at, side="left") - 1
    return values.take(np.where((place >= 0) & (launches.at >= 0), np.append(known, -1)[place], -1))


def read_exchanges(
    gpu: pl.DataFrame,
    launches: Launches,
    autograd: Autograd,
    comm: Collectives,
    passes: Text,
    attention: Bools,
    expert_group: Bools,
) -> Exchanges:
    """Roles of DeepEP-like kernels, of all-to-alls on an expert group, and of such that behave as if on one."""
    named = _named_exchanges(gpu, launches, autograd, comm)
    plain = _plain_exchanges(gpu, launches, comm, passes, attention, expert_group)
    return Exchanges(named.role.fill(plain.role), named.direction.fill(plain.direction))


def _named_exchanges(gpu: pl.DataFrame, launches: Launches, autograd: Autograd, comm: Collectives) -> Exchanges:
    names = Text.of(gpu["name"])
    ours = comm.library.map(lambda v: v in ("deepep", "nvshmem", "custom"))
    speaks = names.matches(r"(?i)dispatch|combine|notify") & ours
    helper = ours & names.matches(_HELPER)
    main = speaks & ~helper & names.matches(_MAIN)
    order = np.lexsort((np.arange(len(gpu)), np.where(launches.at >= 0, launches.at, gpu["start_ns"].to_numpy())))
    order = order[(main | (ours & helper))[order]]
    if not len(order):
        return Exchanges(Text.constant(None, len(gpu)), Text.constant(None, len(gpu)))
    is_main = main[order]
    combines = names.matches(r"(?i)combine")[order] & is_main
    dispatches = is_main & ~combines
    fresh = names.matches(r"(?i)(?<!cached_)notify_dispatch|dispatch_layout")[order]
    cached = names.matches(r"(?i)cached_notify")[order]
    backward = _dispatch_backward(autograd, order, is_main, dispatches, fresh, cached)
    backward = _match_combines(autograd, order, combines, dispatches, backward)
    role = np.where(combines != backward, 1, 0)  # a combine kernel running backward is dispatch, and the reverse
    following = _next_main(is_main)
    ok = following >= 0
    out_role, out_pass = np.full(len(gpu), -1, np.int64), np.full(len(gpu), -1, np.int64)
    out_role[order[ok]] = role[following[ok]]
    out_pass[order[ok]] = backward[following[ok]]
    return Exchanges(Text(("dispatch", "combine"), out_role), Text(("forward", "backward"), out_pass))


def _dispatch_backward(
    autograd: Autograd, order: Ints, is_main: Bools, dispatches: Bools, fresh: Bools, cached: Bools
) -> Bools:
    """A dispatch that re-uses a layout computed before runs backward; one that computes it runs forward."""
    since = np.cumsum(is_main) - is_main  # helpers between two main kernels serve the second
    prepared = np.zeros(len(order) + 1, np.bool_)
    reused = np.zeros(len(order) + 1, np.bool_)
    np.logical_or.at(prepared, since[fresh], True)
    np.logical_or.at(reused, since[cached], True)
    site = autograd.site.take(order)
    engine = site.map(lambda v: v in ("backward", "recompute"))
    told = site.map(lambda v: v == "forward")
    return dispatches & (engine | (~told & autograd.active & reused[since] & ~prepared[since]))


def _match_combines(autograd: Autograd, order: Ints, combines: Bools, dispatches: Bools, backward: Bools) -> Bools:
    """A combine kernel closes the oldest open dispatch kernel, and runs in its pass."""
    opened, closed = np.flatnonzero(dispatches), np.flatnonzero(combines)
    excess = np.maximum.accumulate(np.cumsum(combines.astype(np.int64) - dispatches.astype(np.int64)))
    early = np.maximum(excess, 0)[closed] if len(closed) else closed  # combines whose dispatch the window lacks
    place = np.arange(len(closed)) - early
    ok = (place >= 0) & (place < len(opened))
    out = backward.copy()
    matched = opened[np.where(ok, place, 0)] if len(opened) else np.zeros(len(closed), np.int64)
    out[closed] = np.where(ok & bool(len(opened)), backward[matched], False)
    site = autograd.site.take(order)
    out |= site.map(lambda v: v == "backward") & combines
    out &= ~(site.map(lambda v: v == "forward") & combines)
    return out


def _next_main(is_main: Bools) -> Ints:
    n = len(is_main)
    place = np.minimum.accumulate(np.where(is_main, np.arange(n), n)[::-1])[::-1]
    return np.where(place < n, place, -1)


def _plain_exchanges(
    gpu: pl.DataFrame, launches: Launches, comm: Collectives, passes: Text, attention: Bools, expert_group: Bools
) -> Exchanges:
    """All-to-alls of one group and pass alternate; attention runs between a combine and the next dispatch.

    A group that nobody describes counts as an expert group when its exchanges come in pairs, as many in the
    backward as in the forward.
    """
    rows = np.flatnonzero(comm.call.map(lambda v: v == "all_to_all") & passes.present)
    rows = rows[np.argsort(launches.at[rows], kind="stable")]
    none = Text.constant(None, len(gpu))
    if not len(rows):
        return Exchanges(none, none)
    times = np.sort(launches.at[np.flatnonzero(attention & (launches.at >= 0))])
    table = pl.DataFrame(
        {
            "row": rows,
            "group": comm.group.take(rows).series("group"),
            "pass": passes.take(rows).series("pass"),
            "step": gpu["step"].gather(rows),
            "seen": np.searchsorted(times, launches.at[rows]),
            "expert": expert_group[rows],
        }
    )
    keys = ("group", "pass", "step")
    table = table.with_columns(
        place=pl.int_range(pl.len()).over(keys),
        total=pl.len().over(keys),
        # attention launched since the exchange before: it stands in front of a forward dispatch and a backward combine
        fresh=(pl.col("seen") > pl.col("seen").shift(1).over(keys)).fill_null(True),
    )
    odd = pl.col("place") % 2
    shifted = (pl.col("fresh") & (odd == 1)).sum().over(keys) > (pl.col("fresh") & (odd == 0)).sum().over(keys)
    ahead = (pl.col("pass").cast(pl.String) == "forward").sum().over("group", "step")
    every = pl.len().over("group", "step")
    paired = (ahead % 2 == 0) & ((every == 2 * ahead) | (every == ahead)) & (pl.col("total") >= 2)
    table = table.with_columns(first=odd == shifted.cast(pl.Int64)).filter(pl.col("expert") | paired)
    out = np.full(len(gpu), -1, np.int64)
    forward = (table["pass"].cast(pl.String) == "forward").to_numpy()
    out[table["row"].to_numpy()] = np.where(table["first"].to_numpy() == forward, 0, 1)
    role = Text(("dispatch", "combine"), out)
    return Exchanges(role, passes.where(role.present))

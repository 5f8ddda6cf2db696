"""Replay of a run's events, and walks along its critical path.

In a replay (``tracekit.graph.event_graph``) each event starts when all that it waits for has
happened, and knows what came last. A walk goes back from an event to that, within a rank and
across ranks.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

NO_LIMIT = 2**63 - 1
"""Later than every time of a trace."""

# Rows of the arrays of ``replay_events``, as C variables: of ``times`` and (the first three)
# ``replayed``,
_START = cython.declare(cython.int, 0)
_END = cython.declare(cython.int, 1)
_LAUNCH = cython.declare(cython.int, 2)
_BEGIN = cython.declare(cython.int, 3)
# of ``delays``,
_LATENCY = cython.declare(cython.int, 0)
_GAP = cython.declare(cython.int, 1)  # and the row behind it
_WAITING = cython.declare(cython.int, 3)
_AFTER_RELEASE = cython.declare(cython.int, 4)
_TRANSFER = cython.declare(cython.int, 5)
# of ``replayed``,
_START_HELD_BY = cython.declare(cython.int, 3)
_LAUNCH_HELD_BY = cython.declare(cython.int, 4)
# of ``before`` (the first two are events of streams),
_LAUNCH_BEFORE = cython.declare(cython.int, 2)
_RELEASED_BY = cython.declare(cython.int, 3)
_QUEUE_BEFORE = cython.declare(cython.int, 4)
_LOADER_BEFORE = cython.declare(cython.int, 5)
# of ``factors``, and of ``arrivals``.
_DURATION_FACTOR = cython.declare(cython.int, 0)
_HOST_FACTOR = cython.declare(cython.int, 1)
_WAITS_FOR_LAUNCH = cython.declare(cython.int, 2)
_LAST_START = cython.declare(cython.int, 0)
_LAST_MEMBER = cython.declare(cython.int, 1)
_NO_LAUNCH = cython.declare(cython.longlong, NO_LIMIT)
_NO_STEP_BEGIN = cython.declare(cython.longlong, NO_LIMIT)

SEGMENT_KINDS = (
    "ran",
    "transferred",
    "followed",
    "followed_other_stream",
    "launched",
    "host_worked",
    "released",
    "queue_was_full",
    "loader_was_slow",
    "nothing",
)
"""What a segment of ``walk_back`` is, and with it why the walk goes on where it does: an event ran
(on with what held it back); transferred after its last member had come (on with that one); started
after the event before it on its stream, or on another stream; started after its launch; the host
worked since the launch before; it worked since work of the GPU released it, or made room in the
launch queue; it waited for a batch since the launch behind the batch before; nothing is known to
have come before."""
# The same, as C variables.
_RAN = cython.declare(cython.longlong, 0)
_TRANSFERRED = cython.declare(cython.longlong, 1)
_FOLLOWED = cython.declare(cython.longlong, 2)
_FOLLOWED_OTHER_STREAM = cython.declare(cython.longlong, 3)
_LAUNCHED = cython.declare(cython.longlong, 4)
_HOST_WORKED = cython.declare(cython.longlong, 5)
_RELEASED = cython.declare(cython.longlong, 6)
_QUEUE_WAS_FULL = cython.declare(cython.longlong, 7)
_LOADER_WAS_SLOW = cython.declare(cython.longlong, 8)
_NOTHING_KNOWN = cython.declare(cython.longlong, 9)


def replay_events(
    order: cython.const[cython.uint][::1],
    times: cython.const[cython.longlong][:, ::1],
    delays: cython.const[cython.longlong][:, ::1],
    before: cython.const[cython.int][:, ::1],
    factors: cython.const[cython.double][:, ::1],
    first_match: cython.const[cython.int][::1],
    matches: cython.const[cython.int][::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.longlong[:, ::1],
    arrivals: cython.longlong[:, ::1],
) -> None:
    """Run all events again with other durations: each starts when all it waits for has happened.

    Args:
        order: Event numbers in order of start, and (plus the number of events) in order of launch,
            merged by time.
        times: Measured times of each event on one clock: start; end; launch (``NO_LIMIT``: not
            known); begin (first start on its rank, before which nothing of the rank starts that
            waits for nothing).
        delays: Durations around each event: from its launch to its start, if nothing else holds it
            back; likewise from the end of the event before it on its stream; likewise from the end of
            the event of another stream; waiting (time since the launch before in which the host waited
            for the GPU or for a batch); after release (time of the host from the event that releases
            it to the launch); transfer (from the arrival of the last member to its end).
        before: What each event waits for, -1: nothing: event of the same stream; event of another
            stream; event launched before it by the same host; GPU event whose end let the host go
            on to its launch; GPU event whose end made room in the launch queue; event launched
            behind the wait for the batch before, since when the loader took as long as recorded.
        factors: New over measured duration of each event (of a matched one: of its transfer); the same
            of the host's time before its launch; and 1 if its start waits for its launch, 0 if not.
        first_match, matches: Matched operations of event i: ``matches[first_match[i]:first_match[i
            + 1]]``.
        decisive: The match of each event that was complete last; -1: its duration does not depend
            on others.
        replayed: Result: start; end; launch; what held the start back (an event, or the launch:
            number of events + event; -1: nothing); what held the launch back (the event that
            released the host; number of events + the event that made room in the queue; twice the
            number of events + the event behind the batch before; -1: the host itself).
        arrivals: Result: last start of a member of each match (smaller than all times at the call);
            that member.

    """
    # In order of measured times: what an event waited for, and all members of that match, started
    # before it.
    events = times.shape[1]
    for i in range(order.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        event = cython.cast(cython.longlong, order[i])
        if event >= events:
            _replay_launch(
                event - events, times, delays, before, factors, decisive, replayed, arrivals
            )
            continue
        _replay_start(event, times, delays, before, factors, decisive, replayed, arrivals)
        for k in range(first_match[event], first_match[event + 1]):
            if replayed[_START, event] > arrivals[_LAST_START, matches[k]]:
                arrivals[_LAST_START, matches[k]] = replayed[_START, event]
                arrivals[_LAST_MEMBER, matches[k]] = event
    for i in range(events):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        replayed[_END, i] = _replayed_end(i, times, delays, factors, decisive, replayed, arrivals)


@cython.cfunc
@cython.inline
def _replay_launch(
    event: cython.longlong,
    times: cython.const[cython.longlong][:, ::1],
    delays: cython.const[cython.longlong][:, ::1],
    before: cython.const[cython.int][:, ::1],
    factors: cython.const[cython.double][:, ::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.longlong[:, ::1],
    arrivals: cython.longlong[:, ::1],
) -> None:
    """Launch an event after the host's work since the launch before, and since the event that released the host."""
    previous = before[_LAUNCH_BEFORE, event]
    released_by = before[_RELEASED_BY, event]
    launch = times[_LAUNCH, event]
    begin = times[_BEGIN, event]
    host_factor: cython.double = factors[_HOST_FACTOR, event]
    host_ns: cython.longlong
    ready = launch
    if previous >= 0:
        host_ns = launch - times[_LAUNCH, previous] - delays[_WAITING, event]
        ready = replayed[_LAUNCH, previous] + cython.cast(cython.longlong, host_ns * host_factor)
    elif launch > begin:  # what the host did before its first launch is not known
        ready = begin + cython.cast(cython.longlong, (launch - begin) * host_factor)
    replayed[_LAUNCH_HELD_BY, event] = -1
    host_ns = cython.cast(cython.longlong, max(delays[_AFTER_RELEASE, event], 0) * host_factor)
    if released_by >= 0:
        released = _replayed_end(released_by, times, delays, factors, decisive, replayed, arrivals)
        released += host_ns
        if released > ready:
            ready = released
            replayed[_LAUNCH_HELD_BY, event] = released_by
    queue_before = before[_QUEUE_BEFORE, event]
    if queue_before >= 0:
        released = _replayed_end(queue_before, times, delays, factors, decisive, replayed, arrivals)
        if released_by < 0:  # else the host was not seen to wait for room
            released += host_ns
        if released > ready:
            ready = released
            replayed[_LAUNCH_HELD_BY, event] = times.shape[1] + queue_before
    batch_before = before[_LOADER_BEFORE, event]
    if batch_before >= 0:  # the loader does not get faster with the host
        released = replayed[_LAUNCH, batch_before] + launch - times[_LAUNCH, batch_before]
        if released > ready:
            ready = released
            replayed[_LAUNCH_HELD_BY, event] = 2 * times.shape[1] + batch_before
    replayed[_LAUNCH, event] = ready


@cython.cfunc
@cython.inline
def _replay_start(
    event: cython.longlong,
    times: cython.const[cython.longlong][:, ::1],
    delays: cython.const[cython.longlong][:, ::1],
    before: cython.const[cython.int][:, ::1],
    factors: cython.const[cython.double][:, ::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.longlong[:, ::1],
    arrivals: cython.longlong[:, ::1],
) -> None:
    """Start an event after its launch, unless it does not wait for it, and after the events that it waits for."""
    start = times[_START, event]
    launch = times[_LAUNCH, event]
    held_by: cython.longlong = -1
    # The first value counts only for an event that waits for nothing; one whose launch is not known
    # stays in its place.
    ready: cython.longlong = start if launch == _NO_LAUNCH else times[_BEGIN, event]
    previous_end: cython.longlong
    if launch != _NO_LAUNCH and factors[_WAITS_FOR_LAUNCH, event] > 0:
        # Clocks may put a start before its launch.
        ready = replayed[_LAUNCH, event] + min(start - launch, 0) + delays[_LATENCY, event]
        held_by = times.shape[1] + event
    for k in range(_LAUNCH_BEFORE):  # the events of the same stream and of another stream
        previous = before[k, event]
        if previous >= 0:
            # An event that started before the end of another waited for a part of it only.
            previous_end = _replayed_end(
                previous, times, delays, factors, decisive, replayed, arrivals
            )
            previous_end += min(start - times[_END, previous], 0) + delays[_GAP + k, event]
            if previous_end > ready or held_by < 0:
                ready = previous_end
                held_by = previous
    replayed[_START_HELD_BY, event] = held_by
    replayed[_START, event] = ready


@cython.cfunc
@cython.inline
def _replayed_end(
    event: cython.Py_ssize_t,
    times: cython.const[cython.longlong][:, ::1],
    delays: cython.const[cython.longlong][:, ::1],
    factors: cython.const[cython.double][:, ::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.longlong[:, ::1],
    arrivals: cython.longlong[:, ::1],
) -> cython.longlong:
    """Return the end of an event that has started: of a matched one, its transfer after the last member's arrival."""
    if decisive[event] < 0:
        return replayed[_START, event] + cython.cast(
            cython.longlong,
            (times[_END, event] - times[_START, event]) * factors[_DURATION_FACTOR, event],
        )
    return max(replayed[_START, event], arrivals[_LAST_START, decisive[event]]) + cython.cast(
        cython.longlong, delays[_TRANSFER, event] * factors[_DURATION_FACTOR, event]
    )


def walk_back(
    event: cython.longlong,
    now: cython.longlong,
    at_start: cython.bint,
    walk: cython.int,
    begins: cython.const[cython.longlong][::1],
    rank_index: cython.const[cython.int][::1],
    before: cython.const[cython.int][:, ::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.const[cython.longlong][:, ::1],
    arrivals: cython.const[cython.longlong][:, ::1],
    visited: cython.int[:, ::1],
    segments: cython.longlong[:, ::1],
) -> int:
    """Walk along the critical path, from an event back to the begin of its step, over all ranks.

    Each segment begins where the next one ends, so that they sum to the time walked. What an event
    waited for is asked of it once, so that the walk ends whatever its times say.

    Args:
        event: Event to walk back from.
        now: Time to walk back from.
        at_start: Whether to walk back from what held the event back, else from its end.
        walk: Number of this walk, from 1.
        begins: Begin of the step on each rank; ``NO_LIMIT``: the rank has none.
        rank_index: Index of each event's rank.
        before, decisive, replayed, arrivals: As for ``replay_events``.
        visited: Scratch space: the last walk that asked what each event's start, and its launch,
            waited for; 0 at the first call.
        segments: Result: rows of event, kind (``SEGMENT_KINDS``), event that the walk goes on with
            (-1: none), start and end. At most four for each event and four more.

    Returns:
        Number of segments. The last one is ``nothing`` if the walk could not be followed further.

    """
    events: cython.longlong = replayed.shape[1]
    count: cython.Py_ssize_t = 0
    until: cython.longlong
    peer: cython.longlong
    held_by: cython.longlong
    begin: cython.longlong = begins[rank_index[event]]
    at_launch: cython.bint = False
    visits: cython.Py_ssize_t = 0
    while now > begin:
        if (visits & 0xFFFF) == 0:
            let_interrupt()
        visits += 1
        if not at_start and not at_launch:  # it ran
            until = replayed[_START, event]
            peer = -1
            if decisive[event] >= 0 and arrivals[_LAST_START, decisive[event]] > until:
                peer = arrivals[_LAST_MEMBER, decisive[event]]
                if begins[rank_index[peer]] == _NO_STEP_BEGIN:
                    peer = -1
            if peer >= 0:  # before that it waited for the last member
                until = arrivals[_LAST_START, decisive[event]]
            kind = _TRANSFERRED if peer >= 0 else _RAN
            count = _add_segment(segments, count, event, kind, peer, until, begin, now)
            now = min(now, max(until, begin))
            if peer >= 0:
                event = peer
                begin = begins[rank_index[event]]
            at_start = True
        elif at_start:
            at_start = False
            held_by = replayed[_START_HELD_BY, event]
            if visited[0, event] == walk:
                held_by = -1
            visited[0, event] = walk
            if held_by >= events:
                until = replayed[_LAUNCH, event]
                count = _add_segment(segments, count, event, _LAUNCHED, event, until, begin, now)
                at_launch = True
            elif held_by >= 0:
                until = replayed[_END, held_by]
                kind = _FOLLOWED if held_by == before[0, event] else _FOLLOWED_OTHER_STREAM
                count = _add_segment(segments, count, event, kind, held_by, until, begin, now)
                event = held_by
            else:
                until = begin
                count = _add_segment(segments, count, event, _NOTHING_KNOWN, -1, until, begin, now)
            now = min(now, max(until, begin))
        else:
            held_by = replayed[_LAUNCH_HELD_BY, event]
            if visited[1, event] == walk:
                until = begin
                count = _add_segment(segments, count, event, _NOTHING_KNOWN, -1, until, begin, now)
            elif held_by >= 2 * events:
                visited[1, event] = walk
                held_by -= 2 * events
                until = replayed[_LAUNCH, held_by]
                count = _add_segment(
                    segments, count, event, _LOADER_WAS_SLOW, held_by, until, begin, now
                )
                event = held_by
            elif held_by >= 0:
                visited[1, event] = walk
                kind = _RELEASED
                if held_by >= events:
                    held_by -= events
                    kind = _QUEUE_WAS_FULL
                until = replayed[_END, held_by]
                count = _add_segment(segments, count, event, kind, held_by, until, begin, now)
                event = held_by
                at_launch = False
            else:
                visited[1, event] = walk
                held_by = before[_LAUNCH_BEFORE, event]
                # Before the first launch that was recorded the host had not come so far.
                until = replayed[_LAUNCH, held_by] if held_by >= 0 else begin
                count = _add_segment(
                    segments, count, event, _HOST_WORKED, held_by, until, begin, now
                )
                event = max(held_by, 0)
            now = min(now, max(until, begin))
    return count


@cython.cfunc
@cython.inline
def _add_segment(
    segments: cython.longlong[:, ::1],
    count: cython.Py_ssize_t,
    event: cython.longlong,
    kind: cython.longlong,
    following: cython.longlong,
    until: cython.longlong,
    begin: cython.longlong,
    now: cython.longlong,
) -> cython.Py_ssize_t:
    """Add the segment from *until*, at least *begin*, to *now* if it has a length; return how many there are."""
    start: cython.longlong = max(until, begin)
    if start >= now:
        return count
    segments[count, 0] = event
    segments[count, 1] = kind
    segments[count, 2] = following
    segments[count, 3] = start
    segments[count, 4] = now
    return count + 1

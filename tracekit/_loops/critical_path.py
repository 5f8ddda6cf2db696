"""Walks along the critical path: from an event back to what held it back, within a rank and across ranks.

Within a rank (``tracekit.graph.critical_path.pieces``) events that follow each other without a choice
form a piece. Across ranks (``tracekit.graph.critical_path.links``) a walk goes back from piece to piece;
where a communication waited for a peer it continues with the peer's piece.
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
_GAP = cython.declare(cython.int, 1)
_BLOCKED = cython.declare(cython.int, 2)
_AFTER_RELEASE = cython.declare(cython.int, 3)
_TRANSFER = cython.declare(cython.int, 4)
# of ``replayed``,
_START_HELD_BY = cython.declare(cython.int, 3)
_LAUNCH_HELD_BY = cython.declare(cython.int, 4)
# of ``before`` (the first two are events of streams),
_LAUNCH_BEFORE = cython.declare(cython.int, 2)
_RELEASED_BY = cython.declare(cython.int, 3)
# of ``factors``, and of ``arrivals``.
_DURATION_FACTOR = cython.declare(cython.int, 0)
_HOST_FACTOR = cython.declare(cython.int, 1)
_LAST_START = cython.declare(cython.int, 0)
_LAST_MEMBER = cython.declare(cython.int, 1)
_NO_LAUNCH = cython.declare(cython.longlong, NO_LIMIT)


def mark_walks(
    order: cython.const[cython.longlong][::1],
    held_by: cython.const[cython.longlong][::1],
    marked: cython.longlong[::1],
) -> None:
    """Mark every event on a walk that begins at a marked event.

    Args:
        order: Events, each behind the one that held it back.
        held_by: Event that held each event back; -1: none.
        marked: 1 for events to start from, else 0; afterwards 1 for every event on a walk.

    """
    for i in range(order.shape[0] - 1, -1, -1):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        event = order[i]
        if marked[event] > 0 and held_by[event] >= 0:
            marked[held_by[event]] = 1


def number_pieces(
    order: cython.const[cython.longlong][::1],
    held_by: cython.const[cython.longlong][::1],
    marked: cython.const[cython.longlong][::1],
    joins: cython.const[cython.longlong][::1],
    duration: cython.const[cython.longlong][::1],
    piece: cython.longlong[::1],
    first_event: cython.longlong[::1],
    last_event: cython.longlong[::1],
    longest_event: cython.longlong[::1],
) -> int:
    """Group marked events into pieces: an event that joins belongs to the piece of the one that held it back.

    Args:
        order: Events, each behind the one that held it back.
        held_by: Event that held each event back; -1: none.
        marked: Which events count.
        joins: Which events continue the piece of ``held_by``.
        duration: Duration of each event.
        piece: Result: piece of each marked event; unchanged for others.
        first_event, last_event, longest_event: Results: events of each piece.

    Returns:
        Number of pieces.

    """
    count: cython.Py_ssize_t = 0
    for i in range(order.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        event = order[i]
        if marked[event] > 0:
            if joins[event] > 0:
                joined = piece[held_by[event]]
                piece[event] = joined
                last_event[joined] = event
                if duration[event] >= duration[longest_event[joined]]:
                    longest_event[joined] = event
            else:
                piece[event] = count
                first_event[count] = event
                last_event[count] = event
                longest_event[count] = event
                count += 1
    return count


def walk_steps(
    start: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    before: cython.const[cython.int][::1],
    kind: cython.const[cython.uchar][::1],
    communication_kind: cython.longlong,
    unknown_kind: cython.longlong,
    comm_piece: cython.const[cython.longlong][::1],
    comm_rank: cython.const[cython.longlong][::1],
    comm_kind: cython.const[cython.longlong][::1],
    last_to_arrive: cython.const[cython.longlong][::1],
    last_arrival: cython.const[cython.longlong][::1],
    own_arrival: cython.const[cython.longlong][::1],
    has_step: cython.const[cython.uchar][:, ::1],
    step_begin: cython.const[cython.longlong][:, ::1],
    final_time: cython.const[cython.longlong][::1],
    final_piece: cython.const[cython.longlong][::1],
    final_rank: cython.const[cython.longlong][::1],
    stopped_rank: cython.longlong[::1],
    stopped_ns: cython.longlong[::1],
    least_margin: cython.longlong[:, ::1],
    operations: cython.longlong[:, ::1],
    seen: cython.longlong[::1],
    visited: cython.longlong[::1],
    segments: cython.longlong[:, ::1],
) -> int:
    """Walk back from the end of every step to its beginning, piece by piece, over all ranks.

    A walk that comes to a piece for the second time ends there: times that contradict each other
    would send it in a circle.

    Args:
        start, end, before, kind: Pieces of all ranks: times, the piece each followed (-1: none),
            and its kind.
        communication_kind, unknown_kind: Kinds of a communication, and of time that no piece
            explains.
        comm_piece: Piece of each communication, ascending.
        comm_rank: Index of each communication's rank.
        comm_kind: Kind that a communication's segment gets.
        last_to_arrive: The communication of the peer that arrived last; -1: none other.
        last_arrival, own_arrival: When the last peer and when this rank arrived.
        has_step: [step, rank index]: whether the rank recorded the step.
        step_begin: [step, rank index]: begin of the step on the rank; a walk ends where its rank
            began the step.
        final_time, final_piece, final_rank: Of each step: when it ended, the piece to walk back
            from, and that piece's rank.
        stopped_rank, stopped_ns: Results: where a walk ended before the step's begin, and how long
            before; -1 and 0 at the call.
        least_margin: Result: [step, rank index]: least time by which the rank arrived before the
            last; -1 at the call.
        operations: Result: [step, rank index]: communications of the path at which it did; 0 at the
            call.
        seen: Scratch space, one number for each communication; -1 at the call.
        visited: Scratch space, one number for each piece; -1 at the call.
        segments: Result: rows of step, piece, kind, index of the peer's rank (-1: none), start and
            end.

    Returns:
        Number of segments; -1 if ``segments`` has too few rows.

    """
    count: cython.Py_ssize_t = 0
    visits: cython.Py_ssize_t = 0
    for step in range(step_begin.shape[0]):
        piece = final_piece[step]
        rank = final_rank[step]
        now = final_time[step]
        begin = step_begin[step, rank]
        while now > begin:
            if (visits & 0xFFFF) == 0:
                let_interrupt()
            visits += 1
            visited[piece] = step
            until = start[piece]
            further = piece
            next_rank = rank
            peer_rank = -1
            segment_kind = kind[piece]
            if segment_kind == communication_kind:
                # Binary search: which communication the piece is.
                comm = 0
                high = comm_piece.shape[0]
                while comm < high:
                    middle = (comm + high) // 2
                    if comm_piece[middle] < piece:
                        comm = middle + 1
                    else:
                        high = middle
                segment_kind = comm_kind[comm]
                # Clocks that disagree could send the walk in a circle: go to each only once.
                seen[comm] = step
                peer = last_to_arrive[comm]
                if peer >= 0 and has_step[step, comm_rank[peer]] and seen[peer] != step:
                    seen[peer] = step
                    margin = max(last_arrival[comm] - own_arrival[comm], 0)
                    if operations[step, rank] == 0 or margin < least_margin[step, rank]:
                        least_margin[step, rank] = margin
                    operations[step, rank] += 1
                    next_rank = comm_rank[peer]
                    peer_rank = next_rank
                    until = last_arrival[comm]
                    further = comm_piece[peer]
            if count + 2 > segments.shape[0]:
                return -1
            until = min(max(until, begin), now)
            if until < now:
                segments[count, 0] = step
                segments[count, 1] = piece
                segments[count, 2] = segment_kind
                segments[count, 3] = peer_rank
                segments[count, 4] = until
                segments[count, 5] = now
                count += 1
            now = until
            rank = next_rank
            begin = step_begin[step, rank]
            previous = before[further]
            if previous >= 0 and visited[previous] != step:
                piece = previous
            elif now > begin:  # nothing says what came before
                stopped_rank[step] = rank
                stopped_ns[step] = now - begin
                segments[count, 0] = step
                segments[count, 1] = further
                segments[count, 2] = unknown_kind
                segments[count, 3] = -1
                segments[count, 4] = begin
                segments[count, 5] = now
                count += 1
                now = begin
    return count


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
        delays: Figures durations around each event: latency (from its launch to its start, if
            nothing else holds it back); gap (from the end of the GPU work before it to its start,
            likewise); blocked (time since the launch before in which the host waited for the GPU);
            after release (time of the host from the event that releases it to the launch); transfer
            (from the arrival of the last member to its end).
        before: What each event waits for, -1: nothing: event of the same stream; event of another
            stream; event launched before it by the same host; GPU event whose end let the host go
            on to its launch.
        factors: New over measured duration of each event (of a matched one: of its transfer); and
            of the host's time before its launch, negative: the event does not wait for its launch.
        first_match, matches: Matched operations of event i: ``matches[first_match[i]:first_match[i
            + 1]]``.
        decisive: The match of each event that was complete last; -1: its duration does not depend
            on others.
        replayed: Result: start; end; launch; what held the start back (an event, or the launch:
            number of events + event; -1: nothing); what held the launch back (the event that
            released the host; -1: the host itself).
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
    # Its sign says whether the start waits for it.
    host_factor: cython.double = abs(factors[_HOST_FACTOR, event])
    host_ns: cython.longlong
    ready = launch
    if previous >= 0:
        host_ns = launch - times[_LAUNCH, previous] - delays[_BLOCKED, event]
        ready = replayed[_LAUNCH, previous] + cython.cast(cython.longlong, host_ns * host_factor)
    elif launch > begin:  # what the host did before its first launch is not known
        ready = begin + cython.cast(cython.longlong, (launch - begin) * host_factor)
    replayed[_LAUNCH_HELD_BY, event] = -1
    if released_by >= 0:
        host_ns = delays[_AFTER_RELEASE, event]
        released = _replayed_end(released_by, times, delays, factors, decisive, replayed, arrivals)
        released += cython.cast(cython.longlong, host_ns * host_factor)
        if released > ready:
            ready = released
            replayed[_LAUNCH_HELD_BY, event] = released_by
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
    if launch != _NO_LAUNCH and factors[_HOST_FACTOR, event] >= 0:
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
            previous_end += min(start - times[_END, previous], 0) + delays[_GAP, event]
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


def walk_replayed_step(
    event: cython.longlong,
    begins: cython.const[cython.longlong][::1],
    rank_index: cython.const[cython.int][::1],
    launch_before: cython.const[cython.int][::1],
    decisive: cython.const[cython.int][::1],
    replayed: cython.const[cython.longlong][:, ::1],
    arrivals: cython.const[cython.longlong][:, ::1],
    part: cython.const[cython.int][::1],
    part_ns: cython.longlong[:, ::1],
) -> None:
    """Sum up the critical path of a replayed step, from the event that ends it back to its begin.

    Args:
        event: Event that ends the step.
        begins: Begin of the step on each rank.
        rank_index: Index of each event's rank.
        launch_before: Event launched before each event by the same host; -1: none.
        decisive, replayed, arrivals: As for ``replay_events``.
        part: Number that the time of each event is summed under.
        part_ns: Result: time on the path by that number: of events; of hosts before the launch of
            such events.

    """
    events: cython.longlong = replayed.shape[1]
    now: cython.longlong = replayed[_END, event]
    until: cython.longlong
    following: cython.longlong
    is_host: cython.bint
    begin: cython.longlong
    steps: cython.longlong = 0
    while event >= 0 and steps < 4 * events:  # clocks that disagree could send the walk in a circle
        if (steps & 0xFFFF) == 0:
            let_interrupt()
        steps += 1
        is_host = event >= events
        if is_host:
            event -= events
        begin = begins[rank_index[event]]
        if now <= begin:
            break
        if is_host:  # the time from the launch before, or from the end of what released the host
            until = replayed[_LAUNCH, event]
            following = replayed[_LAUNCH_HELD_BY, event]
            if following >= 0:
                until = min(until, replayed[_END, following])
            elif launch_before[event] >= 0:
                following = events + launch_before[event]
                until = min(until, replayed[_LAUNCH, launch_before[event]])
        else:
            until = replayed[_START, event]
            following = replayed[_START_HELD_BY, event]
            if decisive[event] >= 0 and arrivals[_LAST_START, decisive[event]] > until:
                # Before that it waited for the last member.
                until = arrivals[_LAST_START, decisive[event]]
                following = replayed[_START_HELD_BY, arrivals[_LAST_MEMBER, decisive[event]]]
        part_ns[1 if is_host else 0, part[event]] += max(now - max(until, begin), 0)
        now = min(now, until)
        if following < 0:  # before the first launch that was recorded the host had not come so far
            part_ns[1, part[event]] += max(now - begin, 0)
        event = following

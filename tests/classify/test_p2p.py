"""Sends and receives of a pipeline: their peer, the pass they carry, and what a range says of them."""

from __future__ import annotations

import pytest

from tests.classify.conftest import ENGINE, event_row
from tracekit.classify import classify
from tracekit.classify.classify_events import classify_lost_kernels


def test_a_batch_of_messages_names_one_peer_or_none(program):
    def batch(begin, *messages):
        for i, (way, peer) in enumerate(messages):
            program.op(
                "record_param_comms",
                begin + i,
                begin + i + 0.5,
                collective=way,
                peer=peer,
                group="1",
                group_desc="pp",
            )
        program.note("nccl:coalesced", begin + 5, begin + 9)
        return program.kernel("ncclDevKernel_SendRecv(args)", begin + 6, stream=20)

    both = batch(0, ("send", 2), ("recv", 2))
    sent = batch(20, ("send", 1))
    apart = batch(40, ("recv", 1), ("send", 3))
    labelled = classify(program.events())
    assert [event_row(labelled, i)["peer"] for i in (both, sent, apart)] == [2, 1, None]
    assert [event_row(labelled, i)["collective"] for i in (both, sent, apart)] == [
        "coalesced",
        "send",
        "coalesced",
    ]
    assert {event_row(labelled, i)["label"] for i in (both, sent, apart)} == {"pp_comm"}
    assert {event_row(labelled, i)["group_desc"] for i in (both, sent, apart)} == {"pp"}


def messages(program, plan, *, wait):
    """Point-to-point kernels of one rank in turn: (way, peer, pass of the compute around it).

    Returns their ids.
    """
    ids = []
    for i, (way, peer, work) in enumerate(plan):
        start = 100 * i
        if way == "send":
            _compute(program, start, work)
        program.op(
            "record_param_comms",
            start + 30,
            start + 31,
            collective=way,
            peer=peer,
            group="1",
            group_desc="pp",
        )
        program.note("nccl:coalesced", start + 32, start + 40)
        ids.append(program.kernel("ncclDevKernel_SendRecv(args)", start + 33, stream=20))
        if wait:
            program.op("record_param_comms", start + 50, start + 51, collective="wait", group="1")
        if way == "recv":
            _compute(program, start + 60, work)
    if not wait:
        for i in range(len(plan)):
            program.op("record_param_comms", 9000 + i, 9000.5 + i, collective="wait", group="1")
    return ids


def _compute(program, begin, work):
    if work == "forward":
        program.op("aten::relu", begin, begin + 10, sequence=int(begin) + 1000)
        program.op("aten::relu", begin + 15, begin + 16, sequence=int(begin) + 1001)
        program.node("ReluBackward0", 20_000 + begin, 20_002 + begin, int(begin) + 1000)
        program.kernel("relu", begin + 1)
    else:
        program.node("GeluBackward0", begin, begin + 10, 7)
        program.kernel("gelu", begin + 1, tid=ENGINE)


def test_a_receive_answers_what_is_sent_to_its_peer(program):
    """Forward work goes to rank 1 and backward work to rank 0: what comes from them is the other way round."""
    plan = [
        ("send", 1, "forward"),
        ("send", 0, "backward"),
        ("recv", 1, "forward"),
        ("recv", 0, "backward"),
    ]
    ids = messages(program, plan, wait=False)
    labelled = classify(program.events())
    assert [event_row(labelled, i)["pass"] for i in ids] == [
        "forward",
        "backward",
        "backward",
        "forward",
    ]


def test_a_receive_between_ranks_that_send_both_ways(program):
    """Waited for in turn, the work after the wait tells.

    Waited for at the end, nothing does, and none is made up.
    """
    plan = [
        ("send", 1, "forward"),
        ("send", 1, "backward"),
        ("recv", 1, "forward"),
        ("recv", 1, "backward"),
    ] * 3
    ids = messages(program, plan, wait=True)
    labelled = classify(program.events())
    assert [event_row(labelled, i)["pass"] for i in ids] == [work for _, _, work in plan]
    late = type(program)()
    ids = messages(late, plan, wait=False)
    labelled = classify(late.events())
    assert [event_row(labelled, i)["pass"] for i in ids] == [
        None if way == "recv" else w for way, _, w in plan
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PP:2SEND_F5", (2, 5, "forward")),
        ("PP:2RECV_F5", (2, 5, "forward")),
        ("PP:7SEND_B0", (7, 0, "backward")),
        ("PP:7RECV_B0", (7, 0, "backward")),
    ],
)
def test_a_range_says_what_a_message_carries(program, name, expected):
    program.trained()
    program.note(name, 0, 10)
    way = "send" if "SEND" in name else "recv"
    target = program.nccl(way, 1, group_desc="pp")
    row = event_row(classify(program.events()), target)
    assert (row["stage"], row["microbatch"], row["pass"]) == expected
    assert row["label"] == "pp_comm"


@pytest.mark.parametrize(("ranks", "peer"), [(None, 3), ("[1, 3, 5, 7]", 7)])
def test_a_single_message_spells_its_peer(program, ranks, peer):
    program.note("nccl:send 0->3", 0, 10)
    program.op("record_param_comms", 1, 9, collective="send", group="1", group_ranks=ranks)
    target = program.kernel("ncclDevKernel_SendRecv(args)", 2, stream=20)
    assert event_row(classify(program.events()), target)["peer"] == peer


def test_sendrecv_is_nothing_by_its_name_alone(program):
    program.trained()
    target = program.kernel("ncclDevKernel_SendRecv(args)", 1, stream=20)
    assert event_row(classify(program.events()), target)["label"] == "comm"


@pytest.mark.parametrize("grouped", [False, True])
def test_messages_whose_kernel_and_launch_are_missing_are_not_those_of_the_next_kernel(
    program, grouped
):
    """Of four batches the second was lost: other work is launched after it, or NCCL's group ends without a launch."""
    kernels = []
    for i in range(4):
        start = 100 * i
        if grouped:
            program.note("ncclGroupStart", start, start + 1)
            program.note("ncclGroupEnd", start + 20, start + 30)
        program.op(
            "record_param_comms",
            start + 10,
            start + 11,
            collective="send",
            peer=i,
            group="1",
            group_desc="pp",
        )
        if i != 1:
            kernels.append(program.kernel("ncclDevKernel_SendRecv(args)", start + 25, stream=20))
        if not grouped:
            program.kernel("relu", start + 50)
    events = program.events()
    labelled = classify(events)
    assert [event_row(labelled, kernel)["p2p"] for kernel in kernels] == [
        "send:0",
        "send:2",
        "send:3",
    ]
    assert classify_lost_kernels(events)["p2p"].to_list() == ["send:1"]


def test_what_a_kernel_lacks_is_taken_from_the_hosts_record(program):
    """Of two exchanges alike, the second kernel was recorded without anything but its name and times."""
    args = {"collective": "all_to_allv", "group": "3", "group_desc": "ep", "group_ranks": "[4,5]"}
    sizes = {"bytes": 4096, "received": 1024, "collective_seq": 8}
    kernels = []
    for launch_us, recorded in ((10, args | sizes), (30, {})):
        program.op("record_param_comms", launch_us - 1, launch_us + 3, **args, **sizes)
        kernels.append(
            program.kernel("ncclDevKernel_SendRecv(args)", launch_us, stream=20, **recorded)
        )
    labelled = classify(program.events())
    complete, bare = (event_row(labelled, kernel) for kernel in kernels)
    names = (*args, *sizes)
    assert {name: bare[name] for name in names} == {name: complete[name] for name in names}


def test_a_kernel_that_runs_several_calls_has_the_size_of_none(program):
    """A batch of two sends, each of 64 bytes, runs as one kernel."""
    for k in range(2):
        program.op(
            "record_param_comms", k, k + 0.5, collective="send", peer=k + 1, group="1", bytes=64
        )
    kernel = program.kernel("ncclDevKernel_SendRecv(args)", 3, stream=20)
    assert event_row(classify(program.events()), kernel)["bytes"] is None

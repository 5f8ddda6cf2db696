"""Advice: every entry of the table fires on its evidence, and on nothing less."""

from __future__ import annotations

import dataclasses
import re
from string import Formatter

import pytest
from msgspec.structs import asdict, replace

from tests.kept import analysis_of
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.documents.analysis import Evidence as WaitEvidence
from tracekit.documents.analysis import Straggler, WaitCause
from tracekit.errors import Notice
from tracekit.report.advice import advice_table, advise
from tracekit.report.evidence import Evidence, collect_evidence, gap_words
from tracekit.schema import EXPOSURE_CAUSES, GAP_CAUSES

ENTRIES = {entry.name: entry for entry in advice_table().entries}
FACTS = set(Evidence.__struct_fields__)


def gap(cause, **facts):
    return Evidence(finding="9 ms of the 10 ms to the ideal is lost", gap_cause=cause, schedule="1f1b", **facts)


def exposed(cause, label="dp_comm", **facts):
    finding = f"{label} is exposed for 40 % of the span"
    return Evidence(finding=finding, label=label, cause=cause, cause_share=0.8, transfer_ns=10, **facts)


def late(cause):
    facts = {"late_rank": "rank 2", "late_when": "in step 7", "late_ns": 9, "late_share": 0.1, "late_ratio": "1.96"}
    return Evidence(late_cause=cause, **facts)


UPDATE = Evidence(reload_wait_ns=9, reload_alone_ns=2, reload_times="", reload_limit="wait")
SHORT_OF_COMPUTE = exposed("nothing_to_hide", free_compute_ns=4, unhideable_ns=6, transfer_rate="")

MS = 1_000_000

CASES = {
    "add_ranks": (
        Evidence(missing_ranks="ranks 1–7", ranks_given="1 of 8 ranks", one_sided="pp_comm"),
        Evidence(missing_ranks="ranks 1–7", ranks_given="1 of 8 ranks"),  # the groups of the ranks here are complete
    ),
    "record_peers": (
        Evidence(peers_unnamed=True, one_sided="pp_comm"),
        Evidence(peers_unnamed=True, one_sided="pp_comm", missing_ranks="rank 1", ranks_given="1 of 2 ranks"),
    ),
    "record_groups": (Evidence(groups_unnamed=True, one_sided="dp_comm"), Evidence(one_sided="dp_comm")),
    "record_all_sides": (Evidence(one_sided="comm"), Evidence(one_sided="comm", peers_unnamed=True)),
    "gap_order": (gap("order"), gap("imbalance")),
    "gap_imbalance": (gap("imbalance"), gap("imbalance", late_cause="slow_gpu")),  # other layers do not mend a GPU
    "gap_variation": (gap("variation"), gap("imbalance")),
    "gap_p2p": (gap("p2p"), gap("p2p", one_sided="pp_comm")),  # its wait is not known
    "gap_offload": (gap("offload"), gap("host")),
    "gap_host": (gap("host"), gap("host", host_doing="in data loading")),  # graphs load no data
    "gap_host_under_graphs": (gap("host", cuda_graphs=True), gap("host")),
    "gap_other_work": (gap("other_work"), gap("order")),
    "same_stream": (exposed("same_stream"), exposed("same_stream", one_sided="dp_comm")),
    "one_queue": (exposed("one_queue"), exposed("same_stream")),
    "launched_late": (exposed("launched_late"), exposed("launched_late", cuda_graphs=True)),
    "launched_late_under_graphs": (exposed("launched_late", cuda_graphs=True), exposed("launched_late")),
    "nothing_to_hide": (exposed("nothing_to_hide"), SHORT_OF_COMPUTE),  # other compute could not hide it either
    "compute_waited": (exposed("compute_waited"), exposed("nothing_to_hide")),
    "late_peer": (exposed("peer_late"), exposed("peer_late", "pp_comm")),  # stages wait for each other by design
    "pipeline_wait": (exposed("peer_late", "pp_comm"), exposed("peer_late", "pp_comm", schedule="1f1b")),
    "too_little_compute": (SHORT_OF_COMPUTE, replace(SHORT_OF_COMPUTE, one_sided="dp_comm")),
    "unknown_cause": (exposed(None), exposed("same_stream")),
    "own_bubble": (Evidence(schedule="1f1b", own_bubble_share=0.2), gap("p2p", own_bubble_share=0.2)),
    "late_slow_gpu": (late("slow_gpu"), late("host_late")),
    "late_fewer_multiprocessors": (
        replace(late("fewer_multiprocessors"), late_multiprocessors=12, others_multiprocessors=32),
        late("slow_gpu"),
    ),
    "late_more_work": (late("more_work"), late("slow_gpu")),
    "late_host": (late("host_late"), late("waited_itself")),  # another rank is the one to look at
    "late_slow_link": (late("slow_link"), late("slow_gpu")),
    "launch_bound": (Evidence(launch_bound_share=0.3), Evidence(launch_bound_share=0.3, cuda_graphs=True)),
    "host_busy": (
        Evidence(launch_bound_share=0.3, host_doing="in data loading", host_doing_share=0.9),
        Evidence(launch_bound_share=0.3),
    ),
    "launch_bound_under_graphs": (
        Evidence(launch_bound_share=0.3, cuda_graphs=True),
        Evidence(launch_bound_share=0.3),
    ),
    "mostly_idle": (Evidence(idle_share=0.7, longest_gap="the longest gap, 5 ms"), Evidence(idle_share=0.7)),
    "unlabelled": (Evidence(unlabelled_share=0.02), Evidence()),
    "reload_wait": (UPDATE, replace(UPDATE, reload_limit="reload")),
    "reload_alone": (replace(UPDATE, reload_limit="reload"), UPDATE),
}


def fired(evidence):
    return {name for name, entry in ENTRIES.items() if entry.fires(asdict(evidence))}


def test_every_entry_has_a_case_where_it_fires_and_one_where_it_must_not():
    assert set(CASES) == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_fires_on_its_evidence_and_not_on_the_near_miss(name):
    fires, must_not = CASES[name]
    assert name in fired(fires)
    assert name not in fired(must_not)
    for need in ENTRIES[name].needs:
        assert name not in fired(replace(fires, **{need: None})), need  # nothing rests on what is unknown
    assert all("None" not in advice.text and "{" not in advice.text for advice in advise(fires))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_an_entry_needs_every_fact_that_its_text_or_weight_names(entry):
    in_text = {name for _, name, _, _ in Formatter().parse(entry.text) if name}
    in_weight = {entry.weight} if isinstance(entry.weight, str) else set()
    assert in_text | in_weight <= set(entry.needs)
    assert {*entry.needs, *entry.when, *entry.unless, *entry.absent} <= FACTS


def test_every_cause_has_advice():
    """Of a gap, but for the unexplained and for outputs sent early, which only shorten a run; and of exposure."""
    causes = {cause for entry in ENTRIES.values() for cause in entry.when.get("gap_cause", ())}
    assert causes | {"exposed_ep", "exposed_comm"} == set(GAP_CAUSES) - {"unexplained", "early_output"}
    assert {cause for entry in ENTRIES.values() for cause in entry.when.get("cause", ())} == {
        cause for cause in EXPOSURE_CAUSES if cause != "unknown"
    }


def test_nothing_is_said_of_transfer_while_ranks_are_missing():
    incomplete = replace(SHORT_OF_COMPUTE, one_sided="dp_comm", missing_ranks="rank 1", ranks_given="1 of 2 ranks")
    texts = [advice.text for advice in advise(incomplete)]
    assert texts[0].startswith("add the traces of rank 1 (given: 1 of 2 ranks)")
    assert not re.search("bytes|links|hide", " ".join(texts))


@pytest.mark.parametrize(
    ("framework", "evidence", "option"),
    [
        ("Megatron-LM", exposed("same_stream", "tp_comm"), "`--tp-comm-overlap`"),
        ("Megatron-LM", gap("imbalance"), "`--pipeline-model-parallel-layout`"),
        ("FSDP2", exposed("compute_waited"), "`set_modules_to_forward_prefetch`"),
        ("DeepSpeed", exposed("nothing_to_hide"), "`overlap_comm`"),
        ("DDP", SHORT_OF_COMPUTE, "`no_sync`"),
    ],
)
def test_the_option_of_the_framework_is_named_where_the_trace_shows_it(framework, evidence, option):
    assert option in advise(replace(evidence, framework=framework))[0].text
    assert option not in advise(evidence)[0].text


def test_advice_is_listed_by_weight():
    both = Evidence(launch_bound_share=0.1, unlabelled_share=0.2)
    assert [advice.text.split()[0] for advice in advise(both)] == ["20.0", "the"]


def test_of_advice_with_a_predicted_saving_the_largest_comes_first():
    """The gap is mostly messages, but the host's delay costs more; advice without a saving keeps its place."""
    gap, _ = CASES["gap_p2p"]
    evidence = replace(gap, launch_bound_share=0.1, unlabelled_share=0.2)
    host_saves_more = advise(replace(evidence, savings_ns={"hide pp_comm": 40 * MS, "no host delay": 137 * MS}))
    messages_save_more = advise(replace(evidence, savings_ns={"hide pp_comm": 140 * MS, "no host delay": 137 * MS}))
    assert ["no label" in advice.text for advice in host_saves_more] == [False, True, False]
    for order, first, last in ((host_saves_more, "137.0 ms", "40.0 ms"), (messages_save_more, "140.0 ms", "137.0 ms")):
        assert f"saves up to {first}" in order[0].text
        assert f"saves up to {last}" in order[-1].text


def test_advice_about_time_that_is_not_on_the_critical_path_comes_last_and_says_so():
    gap, _ = CASES["gap_p2p"]
    evidence = replace(gap, launch_bound_share=0.1, blocks_step=False, savings_ns={"no host delay": 66 * MS})
    host, messages = advise(evidence)
    assert "saves up to 66.0 ms" in host.text
    assert messages.text.endswith("(hardly any of it is on the critical path)")
    unknown_path = advise(replace(evidence, blocks_step=None))
    assert all("critical path" not in advice.text for advice in unknown_path)
    predicted = replace(
        evidence, savings_ns={"hide pp_comm": 5 * MS}
    )  # what is predicted to save time is no such advice
    assert all("critical path" not in advice.text for advice in advise(predicted))


def test_where_nothing_else_is_known_the_change_that_saves_most_is_the_advice():
    (advice,) = advise(Evidence(savings_ns={"links x2": 296 * MS, "hide pp_comm": 121 * MS}))
    assert advice.text == "of the changes that were tried `links x2` would save most (up to 296.0 ms per step)"
    assert advise(Evidence()) == []


# Facts of real runs.


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["reload", "reload-overlap"])
def test_an_update_that_waits_is_not_told_to_buffer(samples, sample):
    """Up to 51 of 105 ms and 41 of 153 are waiting in broadcasts, and reload is 0.3 ms in all: buffers cannot help."""
    found = analysis_of(samples / sample)
    evidence = collect_evidence(found)
    assert evidence.reload_alone_ns < 1_000_000
    assert evidence.reload_wait_ns == round(found.total.wait_ns["broadcast"] / 4)
    assert evidence.reload_limit == "wait"
    (bound,) = (notice.message for notice in found.notices if notice.code == "wait-bound")
    assert bound.startswith("broadcast")  # alone or with others: clocks agree to 48 and 9 ms
    assert evidence.reload_wait_at_most == "at most "


@pytest.mark.slow
def test_ranks_that_are_all_there_are_not_asked_for(samples):
    """An Nsight export without NCCL's payloads: every rank is there, and none says to whom it sends."""
    evidence = collect_evidence(analysis_of(samples / "nsys-1f1b", schedule="none"))
    assert (evidence.missing_ranks, evidence.peers_unnamed, evidence.one_sided) == (None, True, "pp_comm")
    alone = collect_evidence(analysis_of(samples / "1f1b", ranks=[0], schedule="none"))
    assert (alone.missing_ranks, alone.ranks_given, alone.one_sided) == ("ranks 1–3", "1 of 4 ranks", "pp_comm")
    assert alone.cause is None


@pytest.mark.slow
def test_a_pipeline_is_told_its_largest_cause_and_not_what_follows_from_it(samples):
    """Of vpp-overlap's gap 75 % is expert communication; its ranks wait in pipeline messages because of that."""
    found = analysis_of(samples / "vpp-overlap")
    evidence, parts = collect_evidence(found), found.schedule.gap_ns
    assert evidence.gap_cause == max(parts, key=parts.get) == "exposed_ep"
    assert evidence.label in ("ep_dispatch", "ep_combine")
    assert evidence.transfer_ns - evidence.free_compute_ns == pytest.approx(evidence.unhideable_ns, abs=1)
    # Waiting for late peers is no transfer, and what has no known cause is not claimed to be.
    because = [found.total.because_ns[label] for label in ("ep_dispatch", "ep_combine")]
    transfer = sum(sum(causes.values()) - causes.get("peer_late", 0) - causes.get("unknown", 0) for causes in because)
    assert evidence.transfer_ns == transfer // sum(len(rank.per_step) for rank in found.rank_results)


@pytest.mark.slow
def test_other_communication_is_called_by_the_label_that_is_exposed_longest(samples):
    found = analysis_of(samples / "1f1b")
    assert gap_words(found, "exposed_comm") == "other exposed communication"  # there is none
    total = found.total
    exposed_ns = {**total.budget.exposed_ns, "dp_comm": 3, "tp_comm": 5}
    budget = replace(total.budget, exposed_ns=exposed_ns)
    rank = found.rank_results[0]
    run = dataclasses.replace(found, rank_results=(replace(rank, whole=replace(rank.whole, budget=budget)),))
    assert gap_words(run, "exposed_comm") == "exposed communication, mostly tp_comm"


@pytest.mark.slow
def test_where_idle_dominates_the_longest_gap_is_named(samples):
    found = analysis_of(samples / "compile")
    longest = found.tables["gaps"].sort("ns", descending=True).row(0, named=True)
    evidence = collect_evidence(found)
    assert evidence.launch_bound_share == pytest.approx(0.706, abs=0.001)
    length = f"{longest['ns'] / 1e6:.1f} ms on rank 0"
    assert f"{length}, was launch-bound and ended with multi_tensor" in evidence.longest_gap


@pytest.mark.slow
def test_device_copies_are_not_asked_to_overlap(samples):
    """Its only exposed label is memsets and device copies."""
    found = analysis_of(samples / "recompute")
    assert set(found.total.budget.exposed_ns) == {"memory"}
    assert collect_evidence(found).label is None


def test_cuda_graphs_are_seen_from_calls_that_launched_several_kernels(samples, corpus):
    graphs = analysis_of(corpus.parent / "frameworks/graph-trees", schedule="none")
    assert collect_evidence(graphs).cuda_graphs
    assert not collect_evidence(analysis_of(samples / "1f1b")).cuda_graphs


def test_a_gpu_with_fewer_multiprocessors_is_to_get_as_many(samples):
    """Rank 2 was recorded with fewer of the multiprocessors, so that clocks and temperature are not the reason."""
    evidence = collect_evidence(analysis_of(samples / "slow-ddp"))
    assert (evidence.late_rank, evidence.late_when) == ("rank 2", "in each of 6 steps")
    assert (evidence.late_cause, evidence.late_multiprocessors) == ("fewer_multiprocessors", 12)
    texts = [advice.text for advice in advise(evidence)]
    assert any("give every rank as many" in text for text in texts)
    assert not any("check its clocks" in text for text in texts)


def test_an_advice_ends_with_what_its_change_would_save():
    evidence = exposed("compute_waited", savings_ns={"hide dp_comm": 17_900_000, "hide pp_comm": 1})
    assert advise(evidence)[0].text.endswith(" (saves up to 17.9 ms per step)")
    assert "saves" not in advise(exposed("compute_waited", savings_ns={"hide pp_comm": 1}))[0].text


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES.values() if entry.change], ids=lambda entry: entry.name)
def test_the_change_of_an_entry_is_one_that_can_be_asked_for(entry):
    from tracekit.whatif.changes import parse_change

    fires = CASES[entry.name][0]
    parse_change(entry.change.format_map({name: str(fact) for name, fact in asdict(fires).items()}))


@pytest.mark.parametrize(
    ("activity", "what", "count", "doing"),
    [
        ("data_loading", "enumerate(DataLoader)", 2, "in data loading"),
        ("operator", "aten::copy_", 2, "inside aten::copy_ on the host"),
        ("operator", "aten::mm", 2000, None),  # 4 µs each: the cost of launching
        ("python", None, 2, None),
    ],
)
def test_what_the_host_does_in_most_of_the_time_decides_the_advice(samples, activity, what, count, doing):
    found = analysis_of(samples / "1f1b")
    launch_bound_ns = found.total.budget.span_ns // 10
    share = launch_bound_ns // len(found.rank_results)
    rows = [{"instead": activity, "what": what, "line": None, "ns": share * 3 // 5, "count": count}]
    ranks = [
        replace(rank, idle_causes={**rank.idle_causes, "launch_bound": share}, instead=rows)
        for rank in found.rank_results
    ]
    evidence = collect_evidence(dataclasses.replace(found, rank_results=tuple(ranks)))
    assert evidence.host_doing == doing
    assert ("host_busy" in fired(evidence)) == bool(doing)


def with_late_host(found, *, launch_bound_ns, known_share=1.0):
    """Return *found* with rank 2 late in every step because of its host, and idle time that is launch-bound."""
    spans = [rank.whole.budget.span_ns for rank in found.rank_results]
    late_ns = min(spans) // len(found.step.per_step) // 10
    parts = [WaitCause("host_late", round(99 * known_share), WaitEvidence(idle_ns=late_ns))]
    parts.append(WaitCause("unknown", 99 - parts[0].ns, WaitEvidence(reason="no cause explains it")))
    steps = [each.step for each in found.step.per_step]
    row = Straggler(2, "dp_comm", 99, 9, candidates=[2], kind="chronic", steps=steps, late_ns=late_ns, why=parts)
    ranks = [
        replace(rank, idle_causes={"launch_bound": launch_bound_ns[rank.rank]}, instead=())
        for rank in found.rank_results
    ]
    return dataclasses.replace(found, stragglers=Stragglers((row,)), rank_results=tuple(ranks)), late_ns


@pytest.mark.slow
def test_a_late_host_of_one_rank_is_no_reason_for_faster_launches_on_all(samples):
    found = analysis_of(samples / "slow-ddp")
    span_ns = {rank.rank: rank.whole.budget.span_ns for rank in found.rank_results}
    one, late_ns = with_late_host(found, launch_bound_ns={rank: span_ns[rank] if rank == 2 else 0 for rank in span_ns})
    evidence = collect_evidence(one)
    assert (evidence.late_rank, evidence.late_cause, evidence.late_ns) == ("rank 2", "host_late", late_ns)
    assert evidence.launch_bound_share is None
    assert "no host delay" not in evidence.savings_ns
    every, _ = with_late_host(found, launch_bound_ns={rank: span_ns[rank] // 4 for rank in span_ns})
    evidence = collect_evidence(every)
    assert evidence.launch_bound_share == pytest.approx(0.25, abs=1e-6)
    assert any("idle 25.0 % of the span on the other ranks because" in advice.text for advice in advise(evidence))


@pytest.mark.slow
def test_lateness_that_is_mostly_unknown_counts_with_the_part_that_its_cause_explains(samples):
    found = analysis_of(samples / "slow-ddp")
    nowhere = dict.fromkeys((rank.rank for rank in found.rank_results), 0)
    partly, late_ns = with_late_host(found, launch_bound_ns=nowhere, known_share=1 / 3)
    assert collect_evidence(partly).late_ns == round(late_ns / 3)


@pytest.mark.slow
def test_advice_says_where_a_wait_is_an_upper_bound(samples):
    found = analysis_of(samples / "slow-ddp")
    assert "waiting for at most" not in " ".join(advice.text for advice in advise(collect_evidence(found)))
    notices = (*found.notices, Notice("wait-bound", labels=("dp_comm",), values={"uncertainty_ns": None}))
    bounded = dataclasses.replace(found, notices=notices)
    assert "rank 2 keeps the others waiting for at most" in " ".join(a.text for a in advise(collect_evidence(bounded)))

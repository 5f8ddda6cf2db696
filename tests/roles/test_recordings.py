"""Recordings of checkpoint-engine and of an RL loop: what their programs did, by any names, without annotations."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.kept import analysis_of
from tracekit import analyze, gate, ingest, load, redact
from tracekit.diffs import diff
from tracekit.errors import InputError, OptionError
from tracekit.report.notices import notice_sentence
from tracekit.run.export import export
from tracekit.run.query import query
from tracekit.store.sources import OneRole

pytestmark = pytest.mark.usefixtures("measured_once")

SUFFIX = ".pt.trace.json.gz"
ENGINE, RL = Path("sample_traces/checkpoint-engine"), Path("sample_traces/rl")
TWO_RANKS = (0, 3)
"""Ranks of the RL loop that tell as much as all four: rank 3 is the rollout's tail."""


def truth(folder):
    return json.loads((folder / "truth.json").read_text())


def check_engine(analysis, *, roles=("parameter_server", "inference_worker")):
    expected, results = truth(ENGINE), analysis.role_results
    assert tuple(role.kind for role in results.roles) == ("parameter_server", "inference_worker")
    assert tuple(role.name for role in results.roles) == roles
    assert [role.ranks for role in results.roles] == [(0, 1, 2, 3)] * 2
    (update,) = results.weight_updates
    assert (update.bytes, update.buckets, update.reloaded_bytes) == (
        expected["bytes"],
        expected["buckets"],
        expected["bytes"],
    )
    assert update.sources == (0, 1, 2, 3) * 3
    assert sum(update.gap_ns.values()) == update.measured_ns - update.ideal_ns
    assert results.iterations == ()


def check_rl(analysis, *, roles=("trainer", "rollout")):
    expected, results = truth(RL), analysis.role_results
    assert tuple(role.kind for role in results.roles) == ("trainer", "rollout")
    assert tuple(role.name for role in results.roles) == roles
    assert results.main_role == roles[0]
    updates = [(update.bytes, update.reloaded_bytes) for update in results.weight_updates]
    assert updates == [(expected["bytes_per_update"],) * 2] * expected["weight_updates"]
    assert len(results.iterations) == expected["iterations"]
    for iteration in results.iterations:
        assert sum(iteration.phase_ns.values()) == iteration.end_ns - iteration.start_ns
        assert all(ns > 0 for ns in iteration.phase_ns.values())
        assert iteration.rollout_tail.rank == 3
        assert iteration.rollout_tail.decode_steps == expected["decode_steps"][3]
        assert {wait.role: wait.waits_for for wait in iteration.roles} == {
            roles[0]: roles[1],
            roles[1]: roles[0],
        }


def without_annotations(source, target):
    """Copy a trace without any annotation."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    kept = [
        e
        for e in trace["traceEvents"]
        if e.get("cat") not in ("user_annotation", "gpu_user_annotation")
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(json.dumps({**trace, "traceEvents": kept}).encode(), 1))


def analyze_roles(traces, **options):
    """Analyse without what tests of roles do not look at."""
    return analyze(traces, schedule="none", timeline=False, **options)


def renamed(target, names, *, ranks=TWO_RANKS):
    """Copy traces of some ranks under other names, by a function of the role's number and the rank."""
    for role, stem in enumerate(("trainer/rank", "rollout/rank")):
        for rank in ranks:
            path = target / f"{names(role, rank)}{SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(RL / f"{stem}{rank}{SUFFIX}", path)
    return target


def part_of_rl(folder, *, ranks=TWO_RANKS):
    return renamed(
        folder / "rl", lambda role, rank: f"{('trainer', 'rollout')[role]}/rank{rank}", ranks=ranks
    )


def test_checkpoint_engine_as_its_program_ran():
    check_engine(analysis_of(ENGINE))


def test_an_rl_loop_as_its_program_ran():
    check_rl(analysis_of(RL))


def test_no_change_is_proposed_for_one_of_several_processes_that_share_the_gpus():
    assert analysis_of(RL).changed_steps == ()


def test_labels_of_a_weight_update():
    analysis = analysis_of(ENGINE)
    labels = {role.name: role.analysis.total.label_count for role in analysis.role_results.roles}
    server, worker = labels["parameter_server"], labels["inference_worker"]
    assert (server["broadcast"], server["onload"]) == (4 * 12, 4 * 3)
    assert not {"forward", "backward", "tp_comm"} & {
        name for name, count in server.items() if count
    }
    assert worker["reload"] == 4 * 48


def test_an_rl_loop_without_annotations(tmp_path):
    for file in RL.rglob(f"rank[03]{SUFFIX}"):
        without_annotations(file, tmp_path / file.relative_to(RL))
    check_rl(analyze_roles(tmp_path))


def test_files_renamed_after_processes(tmp_path):
    check_rl(
        analyze_roles(
            renamed(tmp_path, lambda role, rank: f"node7_{4000 + 13 * rank + 7 * role}.{99 - rank}")
        )
    )


def test_folders_renamed(tmp_path):
    check_rl(
        analyze_roles(renamed(tmp_path, lambda role, rank: f"{'xy'[role]}/{rank}")),
        roles=("x", "y"),
    )


def test_folders_flattened(tmp_path):
    check_rl(
        analyze_roles(renamed(tmp_path, lambda role, rank: f"{'ab'[role]}_rank{rank}")),
        roles=("a", "b"),
    )


def test_workers_without_annotations_and_ranks_are_numbered_by_name_and_that_is_noted(tmp_path):
    for rank in range(4):
        without_annotations(ENGINE / f"rank{rank}{SUFFIX}", tmp_path / f"s{rank * 17 + 3}{SUFFIX}")
        without_annotations(
            ENGINE / f"worker{rank}{SUFFIX}", tmp_path / f"w{rank * 19 + 5}{SUFFIX}"
        )
    analysis = analyze_roles(tmp_path)
    check_engine(analysis)
    assert "ranks-by-order" in {notice.code for notice in analysis.notices}


def test_roles_that_the_caller_names():
    named = {"learner": RL / "trainer", "actors": RL / "rollout"}
    check_rl(analyze_roles(named, ranks=TWO_RANKS), roles=("learner", "actors"))
    assert load(OneRole(str(RL), "rollout")).roles == ("rollout",)


def test_roles_that_the_caller_names_may_do_the_same_work_also_with_a_store(tmp_path):
    replicas = {
        "first": "sample_traces/1f1b/rank0.pt.trace.json.gz",
        "second": "sample_traces/1f1b/rank1.pt.trace.json.gz",
    }
    for store in (None, tmp_path / "store"):
        results = analyze(replicas, schedule="none", store=store).role_results
        kinds = {role.name: role.kind for role in results.roles}
        assert kinds == {"first": "trainer", "second": "trainer"}


def test_a_trace_of_several_roles():
    trace = load(RL)
    assert (trace.roles, trace.ranks) == (("rollout", "trainer"), (0, 1, 2, 3))
    assert trace.role("trainer").rank(2).source.pid != trace.role("rollout").rank(2).source.pid
    with pytest.raises(OptionError, match="2 processes"):
        trace.rank(0)
    check_rl(analyze_roles(trace, ranks=TWO_RANKS))


def test_a_store_has_a_folder_per_role_and_rank(tmp_path):
    store = ingest(RL, tmp_path / "store", ranks=TWO_RANKS)
    assert (tmp_path / "store/role=rollout/rank=3").is_dir()
    assert tuple(store.roles) == ("rollout", "trainer")
    check_rl(analyze(tmp_path / "store"))
    sql = "select role, count(*) n from labelled where label = 'reload' group by 1"
    assert query(tmp_path / "store", sql).rows() == [("rollout", 2 * 2 * 38)]
    assert query(tmp_path / "store", "select count(*) from ranks").item() == 4
    ingest(RL / "trainer", tmp_path / "store", ranks=[0], overwrite=True)  # replaces all roles
    assert not (tmp_path / "store/role=rollout").exists()


def test_the_export_has_tracks_of_phases_and_buffers(tmp_path):
    export(part_of_rl(tmp_path, ranks=[3]), tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {
        "phases",
        "weight updates",
        "trainer · rank 3 · labels",
        "rollout · rank 3 · labels",
    } <= names


def test_a_redacted_copy_is_analysed_like_the_original(tmp_path):
    redact(part_of_rl(tmp_path, ranks=[3]), tmp_path / "red")
    results = analyze_roles(tmp_path / "red").role_results
    assert sorted(role.kind for role in results.roles) == ["rollout", "trainer"]
    assert [update.bytes for update in results.weight_updates] == [
        truth(RL)["bytes_per_update"]
    ] * 2


def test_diff_and_gate_compare_role_by_role():
    analysis = analysis_of(RL)
    assert set(diff(analysis, analysis).to_dict()["roles"]) == {"rollout"}
    assert "roles" not in diff(analysis, analysis, role="rollout").to_dict()
    checks = {check.metric for check in gate(analysis, analysis).checks}
    assert {"step_ms", "rollout/step_ms"} <= checks
    with pytest.raises(OptionError, match="no such role"):
        gate(analysis, analysis, role="critic")


def test_the_json_names_roles_iterations_and_updates():
    document = analysis_of(RL).to_dict()
    assert document["main_role"] == "trainer"
    assert [role["name"] for role in document["roles"]] == ["trainer", "rollout"]
    assert document["roles"][1]["analysis"]["format"] == document["format"]
    assert document["ranks"] == document["roles"][0]["analysis"]["ranks"]
    assert {"index", "start_ns", "end_ns", "phase_ns", "rollout_tail"} <= document["iterations"][
        0
    ].keys()
    assert {
        "bytes",
        "buckets",
        "h2d_ns",
        "broadcast_ns",
        "reload_ns",
        "host_ns",
        "ideal_ns",
    } <= document["weight_updates"][0].keys()


def test_servers_alone_say_what_cannot_be_answered():
    analysis = analyze_roles([ENGINE / f"rank{rank}{SUFFIX}" for rank in range(4)])
    (update,) = analysis.role_results.weight_updates
    assert (update.bytes, update.reload_ns, update.ideal_ns) == (truth(ENGINE)["bytes"], None, None)
    (notice,) = [notice for notice in analysis.notices if notice.code == "role-missing"]
    assert "reloads" in notice_sentence(notice)
    assert "--role" in notice_sentence(notice)


def moved(source, target, seconds):
    """Copy a trace with its times moved."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    trace["baseTimeNanoseconds"] += seconds * 10**9
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def test_roles_recorded_at_different_times(tmp_path):
    (tmp_path / "trainer").mkdir()
    moved(RL / f"rollout/rank0{SUFFIX}", tmp_path / f"rollout/rank0{SUFFIX}", 60)
    shutil.copy(RL / f"trainer/rank0{SUFFIX}", tmp_path / "trainer")
    with pytest.raises(InputError, match="these look like 2 runs"):
        analyze(tmp_path)
    with pytest.raises(InputError, match=r"role b begins .* after role a ends"):
        analyze({"a": tmp_path / "trainer", "b": tmp_path / "rollout"})


def test_copies_of_one_run_are_not_roles(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for rank in range(2):
            shutil.copy(ENGINE.parent / f"reload/rank{rank}{SUFFIX}", tmp_path / name)
    with pytest.raises(InputError, match="these look like 2 runs") as error:
        analyze(tmp_path)
    assert "--role" in error.value.hint


def test_roles_with_different_numbers_of_ranks(tmp_path):
    run = part_of_rl(tmp_path)
    (run / f"rollout/rank0{SUFFIX}").unlink()
    analysis = analyze_roles(run)
    assert "role-ranks" in {notice.code for notice in analysis.notices}
    assert len(analysis.role_results.iterations) == 2
    for iteration in analysis.role_results.iterations:
        assert sum(iteration.phase_ns.values()) == iteration.end_ns - iteration.start_ns


def test_a_worker_without_gpu_events(tmp_path):
    shutil.copytree(ENGINE, tmp_path / "run")
    file = tmp_path / f"run/worker2{SUFFIX}"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "gpu_memcpy"]
    file.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    analysis = analyze_roles(
        {
            "server": [tmp_path / f"run/rank{r}{SUFFIX}" for r in range(4)],
            "worker": [tmp_path / f"run/worker{r}{SUFFIX}" for r in range(4)],
        }
    )
    (update,) = analysis.role_results.weight_updates
    assert (update.bytes, update.buckets) == (truth(ENGINE)["bytes"], 12)
    notices = [
        notice_sentence(notice) for notice in analysis.notices if notice.code == "role-missing"
    ]
    assert len(notices) == 1
    assert "rank 2" in notices[0]


def test_an_unknown_role_is_named():
    with pytest.raises(OptionError, match="--role critic"):
        load(OneRole(str(RL), "critic"))


def test_the_synthetic_reload_still_gives_its_answers():
    reload = analysis_of("sample_traces/reload").reload
    assert (reload.rounds, reload.buckets, reload.sources) == (2, 8, [0, 1, 2, 3] * 2)
    assert len(reload.lanes) > 0

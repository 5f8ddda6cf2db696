"""The doctor finds what is there and what is not, on real captures and on captures made worse on purpose."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import polars as pl
import pytest
from msgspec import structs
from rich.console import Console

import tracekit
from tests.findings.conftest import Recording
from tracekit.doctor.diagnose import diagnose, examine
from tracekit.doctor.findings import (
    DOCTOR_TEXTS,
    EXTRA_RULES,
    FINDING_RULES,
    RECIPES,
    find_extras,
    find_problems,
)
from tracekit.errors import InputError, Notice
from tracekit.schema import EVENTS, RankEvents

pytestmark = pytest.mark.slow


@cache
def diagnosis_of(path):
    return diagnose(path)


def codes(diagnosis):
    return {finding.code for finding in diagnosis.findings}


@pytest.fixture(scope="module")
def rank_events(samples):
    return tracekit.load(samples / "1f1b", ranks=[0]).parts[0]


def codes_without(rank_events, **columns):
    """The findings on a rank whose columns were overwritten."""
    worse = RankEvents(
        rank_events.events.with_columns(**columns).cast(dict(EVENTS)),
        structs.replace(rank_events.source, world_size=None),
    )
    return {finding.code for finding in find_problems([examine(worse)])}


def test_a_full_recording_lacks_nothing(samples):
    diagnosis = diagnosis_of(samples / "1f1b")
    assert codes(diagnosis) == set()
    facts = diagnosis.to_dict()
    assert facts["format"] == "tracekit.doctor/1"
    assert facts["ranks"] == [0, 1, 2, 3]
    assert facts["world_size"] == 4
    assert facts["steps"] == [2]
    assert facts["devices"] == ["NVIDIA H200"]
    assert [group["description"] for group in facts["groups"]] == [
        "default_pg",
        "PIPELINE_MODEL_PARALLEL_GROUP",
    ]
    assert facts["counts"]["kernel"] == 971 + 993 + 991 + 1074
    assert facts["by_rank"][0]["launched"] == facts["by_rank"][0]["gpu_events"] == 971 + 216


def test_each_lack_is_found_when_its_evidence_is_taken_away(rank_events):
    none = pl.lit(None)
    gpu = pl.col("kind").is_in(["kernel", "memcpy", "memset"])
    cpu = pl.col("kind") == "cpu_op"
    other = pl.when(cpu).then(pl.lit("other")).otherwise(pl.col("kind").cast(pl.String))
    assert codes_without(rank_events) == set()
    assert codes_without(rank_events, shapes=none) == {"no-shapes"}
    assert codes_without(rank_events, step=none) == {"no-steps"}
    assert codes_without(rank_events, sequence=none) == {"no-autograd"}
    assert "no-cpu-ops" in codes_without(rank_events, kind=other)
    assert codes_without(
        rank_events,
        kind=pl.when(gpu).then(pl.lit("other")).otherwise(pl.col("kind").cast(pl.String)),
    ) == {"no-gpu-events"}
    assert codes_without(
        rank_events, correlation=pl.when(gpu).then(None).otherwise(pl.col("correlation"))
    ) == {"no-launches"}
    assert codes_without(rank_events, graph=pl.when(gpu).then(7)) == {"cuda-graphs"}
    whole = (
        pl.when(pl.col("kind") == "kernel")
        .then(pl.lit("graph"))
        .otherwise(pl.col("kind").cast(pl.String))
    )
    assert codes_without(rank_events, kind=whole) == {"graphs-unseen"}


def test_groups_without_names_or_descriptions(rank_events):
    bare = structs.replace(rank_events.source, groups=())
    nameless = RankEvents(rank_events.events.with_columns(group=None).cast(dict(EVENTS)), bare)
    assert {f.code for f in find_problems([examine(nameless)])} == {"no-groups", "missing-ranks"}
    groups = tuple(structs.replace(group, description=None) for group in rank_events.source.groups)
    undescribed = rank_events.events.with_columns(group_desc=pl.lit("undefined")).cast(dict(EVENTS))
    worse = RankEvents(
        undescribed, structs.replace(rank_events.source, groups=groups, world_size=None)
    )
    assert {f.code for f in find_problems([examine(worse)])} == {"no-group-descriptions"}


def test_what_readers_noticed_is_a_finding(rank_events):
    cut = structs.replace(
        rank_events.source,
        notices=(Notice("truncated", "the file ends before its list of events does"),),
        world_size=None,
    )
    (finding,) = find_problems([examine(RankEvents(rank_events.events, cut))])
    assert (finding.code, finding.problem, finding.ranks) == (
        "truncated",
        "the file ends before its list of events does",
        (0,),
    )


def test_missing_ranks_are_listed_and_named(samples):
    diagnosis = diagnose(
        [samples / "1f1b/rank0.pt.trace.json.gz", samples / "1f1b/rank2.pt.trace.json.gz"]
    )
    (finding,) = diagnosis.findings
    assert (finding.code, finding.ranks) == ("missing-ranks", (1, 3))
    assert codes(diagnose(samples / "1f1b", ranks=[0])) == set()


def test_an_unreadable_rank_is_a_finding_and_only_unreadable_ranks_an_error(samples, tmp_path):
    good = (samples / "reload/rank0.pt.trace.json.gz").read_bytes()
    (tmp_path / "rank0.json.gz").write_bytes(good)
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    diagnosis = diagnose(tmp_path)
    assert diagnosis.findings[0].code == "unreadable"
    assert "rank1.json" in diagnosis.findings[0].problem
    (tmp_path / "rank0.json.gz").unlink()
    with pytest.raises(InputError, match=r"rank1\.json"):
        diagnose(tmp_path)


def test_nsight_reports_are_diagnosed_too(samples):
    diagnosis = diagnosis_of(samples / "nsys-1f1b")
    assert diagnosis.reader == "nsight"
    assert codes(diagnosis) == {"no-peers", "no-groups"}
    assert "nsys profile" in text(diagnosis)


PUBLIC = {
    "deepseek/train.json.gz": {"no-shapes", "missing-ranks"},
    "dlrm-8ranks": {"no-groups"},
    "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz": {
        "cuda-graphs",
        "stacks-recorded",
    },
    "hta/rank_not_found.json.gz": {"no-gpu-events"},
    "nsight/perlmutter-cloverleaf-cuda.sqlite": {"no-nvtx", "no-steps"},
}


@pytest.mark.parametrize("path", PUBLIC)
def test_public_traces_lack_what_their_recordings_left_out(corpus, path):
    assert codes(diagnose(corpus / path)) == PUBLIC[path]


def text(diagnosis, width=80):
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(diagnosis)
    return captured.get()


def test_the_page_reads_at_80_columns(samples):
    page = text(diagnosis_of(samples / "nsys-1f1b"))
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80
    assert "Missing, and what it costs" in page
    assert "Nothing is missing" in text(diagnosis_of(samples / "1f1b"))


def test_recipes_are_not_broken_by_an_80_column_terminal():
    for recipe in RECIPES.values():
        assert max(map(len, recipe.splitlines())) <= 78


def test_json_is_json(samples):
    assert json.loads(diagnosis_of(samples / "reload").to_json())["reader"] == "kineto"


def test_every_lack_says_what_to_do():
    assert [*DOCTOR_TEXTS.rules] == [*FINDING_RULES]
    assert [extra.code for extra in DOCTOR_TEXTS.extras] == [*EXTRA_RULES]
    for lack in (*DOCTOR_TEXTS.rules.values(), *DOCTOR_TEXTS.notices.values()):
        assert lack.severity in ("blocks", "limits", "note")
        assert lack.fix
        assert lack.rules_out or lack.severity == "note"
    assert all(lack.problem for lack in DOCTOR_TEXTS.rules.values())


def test_an_nsight_recording_says_first_what_it_answers_then_what_one_option_more_gives(samples):
    diagnosis = diagnosis_of(samples / "nsys-meg-1f1b")
    page = text(diagnosis)
    assert page.index("Answered as it is") < page.index("One option more") < page.index("Missing")
    told = diagnosis.to_dict()
    assert any("launching threads" in answer for answer in told["answers"])
    assert any("order along the pipeline" in answer for answer in told["answers"])
    command = told["export_again"]["command"].split()
    assert command[:2] == ["nsys", "export"]
    assert "--include-blobs=true" in command
    assert command[-1].endswith("rank0.nsys-rep")
    assert {"no-operators", "no-peers", "no-steps"} <= {
        finding.code for finding in diagnosis.findings
    }


def test_with_operators_the_answers_rest_on_them(samples):
    told = diagnosis_of(samples / "nsys-1f1b").to_dict()
    assert any("autograd's numbers" in answer for answer in told["answers"])
    assert "steps, by marks" in told["answers"]


def test_a_recording_with_communicators_needs_no_other_export(corpus):
    folder = corpus.parent / "frameworks" / "nsys-meg-1f1b-payloads"
    if not folder.exists():
        pytest.skip("the recordings of frameworks are not here")
    told = diagnose(folder, ranks=[0]).to_dict()
    assert told["export_again"] is None
    assert any("recorded peers" in answer for answer in told["answers"])


def test_a_pytorch_trace_has_no_export_to_repeat(samples):
    told = diagnosis_of(samples / "1f1b-noshapes").to_dict()
    assert (told["answers"], told["export_again"]) == (None, None)


def test_what_could_be_recorded_too_is_no_lack(samples):
    bare, whole = diagnosis_of(samples / "1f1b"), diagnosis_of(samples / "memory")
    assert [one["code"] for one in bare.to_dict()["extras"]] == ["memory"]
    assert (bare.findings, whole.findings, whole.to_dict()["extras"]) == ((), (), [])
    assert "profile_memory=True" in text(bare)
    assert max(len(line.rstrip()) for line in text(bare).splitlines()) <= 80
    heading = "Not recorded, and needed only for"
    assert (heading in text(bare), heading in text(whole)) == (True, False)


def test_nothing_is_promised_that_the_files_do_not_have(samples):
    """Memory was not recorded: the sentence names what can be had, and not every answer."""
    sentence = next(
        line
        for line in text(diagnosis_of(samples / "1f1b")).splitlines()
        if line.startswith("Nothing is")
    )
    assert sentence.rstrip() == "Nothing is missing that labels, budget, overlap and waits need."


def test_totals_and_peaks_that_nobody_knows(samples):
    rank = tracekit.load(samples / "memory", ranks=[0]).rank(0)
    old = replace(rank, memory=rank.memory.with_columns(allocated=pl.lit(None, pl.Int64)))
    odd = replace(rank, source=structs.replace(rank.source, devices=("Abacus",)))
    assert [one.code for one in find_extras([examine(old)])] == ["memory-totals"]
    assert [one.code for one in find_extras([examine(odd)])] == ["peaks"]


def test_a_server_lacks_no_backward_and_is_shown_how_servers_record(tmp_path, run_command):
    recording = Recording()
    recording.annotation("step[DECODE bs=4]", 0, 5)
    recording.kernel(1, 2, 3)
    recording.write(tmp_path)
    merged = {"pid": "[TP00] 7", "ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1}
    (tmp_path / "merged-17.trace.json").write_text(json.dumps({"traceEvents": [merged]}))
    found = diagnose(tmp_path)
    assert "no-autograd" not in {finding.code for finding in found.findings}
    (notice,) = found.notices
    assert notice.values["files"] == ("merged-17.trace.json",)
    printed = " ".join(run_command("doctor", tmp_path).stdout.split())
    assert "several ranks merged into one file" in printed
    assert "start_profile" in printed
    assert "train_step" not in printed

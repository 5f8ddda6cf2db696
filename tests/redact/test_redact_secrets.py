"""Secrets planted wherever a trace can hold text: after redaction none is found."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import tomllib
from pathlib import Path

import pytest

import tracekit
from tests.fuzz import redact as planting
from tests.redact.test_redact import content, event, run
from tracekit.redact.names import NameRedactor

PACKS = Path(tracekit.__file__).parent / "classify/packs"
MIN_KINDS = 20

pytestmark = pytest.mark.slow


def test_secrets_are_of_many_kinds():
    assert len(planting.KINDS) >= MIN_KINDS


@pytest.mark.parametrize("seed", range(4))
def test_no_planted_secret_is_left_in_a_trace(tmp_path, seed):
    raw, secrets = planting.plant_in_trace(random.Random(seed), 200)
    (tmp_path / "rank0.json").write_bytes(raw)
    run(tmp_path / "rank0.json", tmp_path / "out.json")
    assert planting.left_in(tmp_path / "out.json", secrets) == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_trace_without_its_secrets_has_the_same_figures(tmp_path, seed):
    raw, secrets = planting.plant_in_trace(random.Random(seed), 200, whole=True)
    assert len(set(secrets)) >= 200
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    (tmp_path / "with/rank0.json").write_bytes(raw)
    run(tmp_path / "with/rank0.json", tmp_path / "without/rank0.json")
    assert planting.left_in(tmp_path / "without/rank0.json", secrets) == []
    before = tracekit.analyze(tmp_path / "with", file_rank=0).to_dict()
    after = tracekit.analyze(tmp_path / "without", file_rank=0).to_dict()
    assert before["total"]["span_ns"] > 0
    for key in (
        "ranks",
        "total",
        "schedule",
        "hiding",
        "stragglers",
        "clocks",
        "copies",
        "reload",
        "memory",
    ):
        assert before[key] == after[key], key


@pytest.mark.parametrize("seed", range(4))
def test_no_planted_secret_is_left_in_a_report(tmp_path, seed):
    raw, secrets = planting.plant_in_report(random.Random(seed), 60)
    (tmp_path / "rank0.sqlite").write_bytes(raw)
    run(tmp_path / "rank0.sqlite", tmp_path / "out.sqlite")
    assert planting.left_in(tmp_path / "out.sqlite", secrets) == []


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", planting.KINDS)
def test_no_kind_of_secret_is_left_in_any_name(kind, seeds):
    names = NameRedactor()
    secrets = [planting.KINDS[kind](random.Random(f"{kind} {seed}")) for seed in seeds]
    texts = {shape.format(secret): secret for shape in planting.SHAPES for secret in secrets}
    assert [
        text
        for text, secret in texts.items()
        if secret in names.redact(text) + names.redact_code(text)
    ] == []


@pytest.mark.parametrize(
    "kind", ["e-mail address", "IPv4 address", "home folder", "Windows folder", "URL"]
)
def test_what_is_kept_on_request_still_has_no_paths_and_addresses(kind):
    secret = planting.KINDS[kind](random.Random(kind))
    assert secret not in NameRedactor().redact_kept(f"zeppelin {secret}")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "aten::mm",
            "aten::_foreach_add_",
            "cudaLaunchKernel",
            "cudaStreamGetCaptureInfo_v2",
            "MmBackward0",
            "TBackward0",
        ),
        *(
            "autograd::engine::evaluate_function: AddmmBackward0",
            "FSDP::pre_forward (layers.12)",
            "nccl:all_reduce",
        ),
        *(
            "nccl:send 0->1",
            "execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193sqsq16sqsk8193)",
            "execute_context_1(512)_generation_2(2)",
            "PP:2F0",
            "PP:(0F7;7B3)OVERLAP_F_B",
            "ProfilerStep#1234567",
            "Forward 3",
            "mlp(W)",
        ),
        *(
            "Optimizer.step#AdamW.step",
            "Torch-Compiled Region: 0/0",
            "DistributedDataParallel.forward",
            "step 17",
        ),
        *(
            "EXPERT_MODEL_PARALLEL_GROUP",
            "all_to_allv",
            "c10::BFloat16",
            "NVIDIA H200",
            "NVIDIA A100-SXM4-80GB",
        ),
    ],
)
def test_names_that_an_analysis_reads_stay(name):
    assert NameRedactor().redact(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >()",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "triton_poi_fused_add_mul_3",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "Memcpy DtoH (Device -> Pinned)",
    ],
)
def test_known_kernels_stay(name):
    assert NameRedactor().redact_code(name) == name


def _literal_words(pattern):
    """Return the words that a rule's pattern spells out."""
    for syntax in (r"\\[a-zA-Z]", r"\(\?-?i?[:)]", r"\[[^\]]*\]"):
        pattern = re.sub(syntax, " ", pattern)
    return re.findall(r"[A-Za-z]{2,}", re.sub(r"_\?", "_", pattern))


@pytest.mark.parametrize("pack", sorted(PACKS.glob("*.toml")), ids=lambda path: path.stem)
def test_words_that_classification_rules_ask_for_are_known(pack):
    entries = tomllib.loads(pack.read_text())
    conditions = [
        text
        for entry in (
            *entries.get("rule", ()),
            *entries.get("group", ()),
            *entries.get("module", ()),
        )
        for key in ("when", "unless")
        for column, value in entry.get(key, {}).items()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
        and column in ("name", "annotation", "annotations", "chain", "node", "op", "group_desc")
    ]
    words = {word for text in conditions for word in _literal_words(text)}
    assert {word for word in words if NameRedactor().redact(word) != word} == set()


def test_rules_still_find_their_words_inside_unknown_ones():
    assert re.fullmatch(r"x\d+attnx\d+", NameRedactor().redact("zeppelinattnkernel"))


@pytest.mark.parametrize(
    "word", ["xy", "root", "admin", "a", "ZeppelinCorp", "Müller", "flash", "STRASSE", "東京"]
)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_words_that_are_named_always_go(tmp_path, word, ensure_ascii):
    source = tmp_path / "in.json"
    texts = [word, word.upper(), word.lower(), "straße", "Mu\u0308ller", "flash_attn", "root"]
    events = [
        event(f"void {text}::gemm<1>({text}_t)", kind)
        for text in texts
        for kind in ("kernel", "user_annotation")
    ]
    source.write_text(
        json.dumps({"traceEvents": events}, ensure_ascii=ensure_ascii), encoding="utf-8"
    )
    for keep in ((), ("annotations", "arguments")):
        run(source, tmp_path / "out.json", words=[word], keep=keep)
        for redacted in json.loads(content(tmp_path / "out.json"))["traceEvents"]:
            parts = re.split(r"[^\w]|_", redacted["name"].casefold())
            assert word.casefold() not in parts


def test_a_word_spread_over_brackets_goes(tmp_path):
    source = tmp_path / "in.json"
    source.write_text(json.dumps({"traceEvents": [event("void flash<ring>", "kernel")]}))
    run(source, tmp_path / "out.json", words=["FlashRing"])
    assert json.loads(content(tmp_path / "out.json"))["traceEvents"][0]["name"] == "x1"


def test_a_number_that_is_named_goes(tmp_path):
    source = tmp_path / "in.json"
    source.write_text(json.dumps({"traceEvents": [event(bytes=41555, correlation=7)]}))
    run(source, tmp_path / "out.json", words=["41555"])
    assert json.loads(content(tmp_path / "out.json"))["traceEvents"][0]["args"] == {
        "correlation": 7
    }


def test_a_group_has_one_name_on_every_rank(tmp_path):
    (tmp_path / "in").mkdir()
    for rank, first in enumerate(
        ("zeppelin", "other")
    ):  # another unknown word comes first on rank 1
        args = {"Process Group Name": "zeppelin_tp", "Collective name": "allreduce"}
        events = [event(first), event("nccl", "kernel", **args)]
        (tmp_path / f"in/rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    run(tmp_path / "in", tmp_path / "out")
    group_names = {
        json.loads(content(path))["traceEvents"][1]["args"]["Process Group Name"]
        for path in (tmp_path / "out").iterdir()
    }
    assert len(group_names) == 1
    assert re.fullmatch(r"x\d+_tp", group_names.pop())


def test_a_report_keeps_only_listed_tables_and_columns(tmp_path, samples):
    source = tmp_path / "rank1.sqlite"
    source.write_bytes((samples / "nsys-1f1b/rank1.sqlite").read_bytes())
    with sqlite3.connect(source) as report:
        report.execute("CREATE TABLE NVTX_zeppelin (a)")
        report.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN zeppelin")
        report.execute("CREATE VIEW zeppelin AS SELECT 1")
        report.execute(
            "CREATE TRIGGER zeppelin_trigger AFTER DELETE ON StringIds BEGIN SELECT 1; END"
        )
    report.close()
    run(source, tmp_path / "out.sqlite")
    with sqlite3.connect(tmp_path / "out.sqlite") as report:
        kinds = {kind for (kind,) in report.execute("SELECT type FROM sqlite_master")}
        freed = report.execute("PRAGMA freelist_count").fetchone()[0]
    report.close()
    assert kinds == {"table"}
    assert freed == 0
    assert b"zeppelin" not in (tmp_path / "out.sqlite").read_bytes()

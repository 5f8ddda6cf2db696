"""Modules, layers and FLOP on other people's models, against their JSON and their published architecture."""

from __future__ import annotations

from functools import lru_cache

import polars as pl
import pytest

from tests.truth import raw
from tracekit import analyze
from tracekit.classify import classify
from tracekit.parsers import kineto

pytestmark = pytest.mark.slow

QWEN = {
    "Qwen2Attention": "attention",
    "Qwen2MLP": "mlp",
    "Qwen2RMSNorm": "norm",
    "Embedding": "embedding",
}
VIT = {
    "ViTSdpaAttention": "attention",
    "ViTIntermediate": "mlp",
    "ViTOutput": "mlp",
    "LayerNorm": "norm",
    "ViTEmbeddings": {"embedding", "convolution"},  # patches are embedded by a convolution
    "ViTPooler": "head",
}
TIMESFORMER = {
    "TimeSformerAttention": "attention",
    "TimesformerIntermediate": "mlp",
    "TimesformerOutput": "mlp",
    "LayerNorm": "norm",
    "TimesformerEmbeddings": {"embedding", "convolution"},
}
BERT = {
    "BertAttention": "attention",
    "BertIntermediate": "mlp",
    "BertOutput": "mlp",
    "LayerNorm": "norm",
    "BertEmbeddings": "embedding",
    "BertOnlyMLMHead": {"head", "mlp"},  # its activation is a GELU
}
GPT_OSS = {
    "OAIAttention": "attention",
    "MLPBlock": {"mlp", "router"},
    "RMSNorm": "norm",
    "LogitsProcessor": "head",
}
MODELS = {
    "h100_Qwen_Qwen1.5-0.5B-Chat__1016005": (QWEN, 24),
    "mi300_Qwen_Qwen1.5-0.5B-Chat__1016005": (QWEN, 24),
    "h100_Falconsai_nsfw_image_detection__1016002": (VIT, 12),
    "mi300_Falconsai_nsfw_image_detection__1016002": (VIT, 12),
    "h100_facebook_timesformer-base-finetuned-k400__1016002": (TIMESFORMER, 12),
    "mi300_facebook_timesformer-base-finetuned-k400__1016002": (TIMESFORMER, 12),
    "h100_gaunernst_bert-small-uncased__1016001": (BERT, 4),
    "mi300_gaunernst_bert-small-uncased__1016001": (BERT, 4),
    "b200_eager": (GPT_OSS, 36),
}
"""Kinds of the modules by class, and the number of layers, as published."""


@lru_cache(maxsize=2)
def recording(path):
    return raw.Recording(path), kineto.read(path).events


def labelled(events):
    return classify(events).sort("start_ns", maintain_order=True)


@pytest.mark.parametrize("model", MODELS)
def test_modules_are_those_of_the_stack(corpus, model):
    trace, events = recording(corpus / "models" / f"{model}.json.gz")
    gpu_events = labelled(events)
    right = raw.modules_by_class(trace, MODELS[model][0])
    good, bad, wrong = raw.agreement(trace, gpu_events["module"].to_list(), right)
    assert good > 0.97, wrong
    assert bad < 0.01, wrong
    assert set(gpu_events.filter(pl.col("label") != "memory")["label"]) <= {
        "forward",
        "tp_comm",
        "other",
    }


@pytest.mark.parametrize("model", MODELS)
def test_without_the_stack_modules_are_right_or_absent(corpus, model):
    trace, events = recording(corpus / "models" / f"{model}.json.gz")
    modules = labelled(events.filter(pl.col("kind") != "python"))["module"].to_list()
    _, bad, wrong = raw.agreement(trace, modules, raw.modules_by_class(trace, MODELS[model][0]))
    assert bad < 0.01, wrong


@pytest.mark.parametrize("model", MODELS)
def test_layers_are_those_of_the_model(corpus, model):
    rows = analyze(corpus / "models" / f"{model}.json.gz", by="layer", schedule="none").places.rows
    assert rows["layer"].drop_nulls().to_list() == list(range(MODELS[model][1]))


@pytest.mark.parametrize(
    ("model", "layers"), [("hta_alexnet", 0), ("sglang_decode", 36), ("compile_triton", 0)]
)
def test_whole_passes_are_no_layers(corpus, model, layers):
    """AlexNet runs once to warm up and once to be measured."""
    rows = analyze(corpus / "models" / f"{model}.json.gz", by="layer", schedule="none").places.rows
    assert rows["layer"].drop_nulls().len() == layers


@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_products_of_a_gated_mlp(corpus, gpu):
    """By shape: 1024×2816 and back are the MLP's, 1024×1024 the attention's.

    Helpers of an operator are its time.
    """
    path = corpus / "models" / f"{gpu}_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    times = recording(path)[0].product_time()
    mlp, attention = times[1024, 2816] + times[2816, 1024], times[1024, 1024]
    products = analyze(path, schedule="none").rate_tables.products.filter(
        pl.col("op").is_in(["aten::mm", "aten::addmm"])
    )
    counted = {
        module: ns / 1e6 for module, ns in products.group_by("module").agg(pl.sum("ns")).iter_rows()
    }
    assert counted["mlp"] == pytest.approx(mlp, rel=0.001)
    assert counted["attention"] == pytest.approx(attention, rel=0.001)


@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_flop_are_the_hand_count(corpus, gpu):
    """24 layers: four square projections, three of the MLP, and attention of every token with every other."""
    trace, _ = recording(corpus / "models" / f"{gpu}_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    rates = analyze(
        corpus / "models" / f"{gpu}_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", schedule="none"
    ).rates
    operators = filter(None, map(trace.operator, range(len(trace.gpu))))
    query = next(
        op["args"]["Input Dims"][0] for op in operators if "attention_forward" in op["name"]
    )
    batch, tokens, heads, width = query
    linear = 24 * 2 * batch * tokens * (4 * 1024 * 1024 + 3 * 1024 * 2816)
    attention = 24 * 4 * batch * heads * tokens * tokens * width
    rotary = trace.product_flop() - linear
    assert 0 <= rotary < 1e-5 * linear  # one small batched product
    assert rates.total.flop == linear + rotary + attention


def test_products_without_shapes_make_totals_lower_bounds(corpus):
    """The experts' and attention's kernels of this decode have no operands that would tell their sizes."""
    path = corpus / "models" / "b200_eager.json.gz"
    trace, _ = recording(path)
    named = [e["dur"] for e in trace.gpu if e["name"].startswith(("bmm_", "fmhaSm100a"))]
    analysis = analyze(path, schedule="none")
    rates = analysis.rate_tables
    assert rates.total.uncounted_ns / 1000 == pytest.approx(sum(named), rel=0.01)  # some overlap
    assert rates.total.flop == trace.product_flop()
    assert analysis.to_document().rates.lower_bound
    assert set(rates.uncounted["kernel"]) == {
        "TensorRT-LLM batched product",
        "TensorRT-LLM attention",
    }

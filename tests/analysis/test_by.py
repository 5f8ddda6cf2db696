"""The step by layer, module, annotation and shape: against what the program ran, with hints taken away one by one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.analysis.measure.by.layers import (
    MAX_KERNELS_PER_OPERATOR,
    Host,
    repeated_layers,
    repeated_positions,
)
from tracekit.analysis.measure.by.rows import MIN_STACK_TO_RULE_RATIO
from tracekit.classify import classify
from tracekit.classify.model_position import (
    MIN_STACK_TO_NAME_RATIO,
    Frames,
    layer_number,
    module_layers,
)
from tracekit.errors import OptionError
from tracekit.run.analyze import analyze
from tracekit.run.load import load
from tracekit.schema import EVENTS, LABELLED, RankEvents, conform
from tracekit.store.trace import Trace

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRUTH = json.loads((SAMPLES / "layers" / "truth.json").read_text())


@cache
def rank():
    return load(SAMPLES / "layers", stacks=True).rank(0)


@cache
def labelled():
    return classify(rank().events.filter(pl.col("kind") != "python"))


def layers_by_repetition(events, gpu_events):
    positions, _ = repeated_positions(events, gpu_events)
    return positions["layer"].fill_null(-1).to_numpy()


def layers_of(events):
    """The layer of every GPU event, -1 where it has none, and what says so."""
    gpu_events = classify(events)
    source = gpu_events["layer_from"].drop_nulls()
    if len(source):
        return gpu_events["layer"].fill_null(-1).to_numpy(), source[0]
    return layers_by_repetition(events, gpu_events), "repetition"


def without_frames():
    return rank().events.filter(pl.col("kind") != "python")


def renamed():
    """The trace with its layers as named ranges in the place of module calls."""
    events = rank().events.with_columns(
        pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)
    )
    number = pl.col("name").str.extract(r"^nn\.Module: Layer_(\d+)$")
    mine = (pl.col("kind") == "python") & number.is_not_null()
    named = events.with_columns(
        name=pl.when(mine).then(pl.format("layer {}", number)).otherwise("name"),
        kind=pl.when(mine).then(pl.lit("annotation")).otherwise("kind"),
    )
    return named.filter(pl.col("kind") != "python").cast(rank().events.schema)


def test_every_kind_of_evidence_puts_every_kernel_into_the_same_layer():
    stack, by_stack = layers_of(rank().events)
    named, by_name = layers_of(renamed())
    repeated, by_repetition = layers_of(without_frames())
    assert (by_stack, by_name, by_repetition) == ("module stack", "annotation", "repetition")
    assert sorted(set(stack.tolist())) == [-1, *range(TRUTH["layers"])]
    assert stack.tolist() == named.tolist() == repeated.tolist()


def test_without_sequence_numbers_the_backward_repeats_in_reverse():
    stack, _ = layers_of(rank().events)
    events = without_frames().with_columns(sequence=pl.lit(None, pl.Int64))
    mute = labelled().with_columns(autograd_sequence=pl.lit(None, pl.Int64))
    mine = layers_by_repetition(events, mute)
    placed = mine >= 0
    # Where a backward's layers begin is known to a few kernels.
    assert (mine[placed] == stack[placed]).mean() > 0.9
    heavy = placed & labelled()["name"].cast(pl.String).str.contains("nvjet").to_numpy()
    assert (mine[heavy] == stack[heavy]).all()
    assert placed.sum() > 0.9 * (stack >= 0).sum()


def test_rows_add_up_and_flop_are_the_hand_count():
    result = analysis_of(SAMPLES / "layers", by="layer")
    rows, cost = result.places.rows, result.total.budget
    assert (
        rows["ns"].sum()
        == result.places.total_ns
        == cost.compute_ns + sum(cost.exposed_ns.values())
    )
    layers = rows.filter(pl.col("layer").is_not_null())
    assert layers["layer"].to_list() == list(range(TRUTH["layers"]))
    flop = TRUTH["flop_per_layer_and_microbatch"]
    # Three products of a size per linear: forward, input's and weight's gradient; attention
    # multiplies 2 and 5 times.
    each = 3 * flop["mm"] + flop["attention"] * 7 // 2
    assert (
        layers["flop"].to_list()
        == [each * TRUTH["microbatches"] * TRUTH["steps"]] * TRUTH["layers"]
    )
    by_label = sum(layers[f"{label}_ns"].sum() for label in ("forward", "dgrad", "wgrad"))
    assert by_label == layers["compute_ns"].sum()
    assert rows.filter(name="not placed")["share"][0] < 0.01


def test_modules_have_their_own_time_and_that_of_what_they_call():
    rows = analysis_of(SAMPLES / "layers", by="module", schedule="none").places.rows
    paths = {
        path: (own, whole)
        for path, own, whole in rows.select("path", "ns", "inclusive_ns").iter_rows()
        if path
    }
    for layer in range(TRUTH["layers"]):
        inside = sum(
            own for path, (own, _) in paths.items() if f"Layer_{layer}" in path.split(" > ")
        )
        assert paths[f"Gpt_0 > Layer_{layer}"][1] == inside
    assert paths["Gpt_0 > Linear_24"][0] == paths["Gpt_0 > Linear_24"][1]


def test_the_slow_shape_is_on_top():
    by = analysis_of(SAMPLES / "rates", by="shape", schedule="none").places
    assert by.rows["name"][0] == "mm [[2048,1024],[1024,4093]] bf16"
    assert by.rows["ns"].sum() == by.total_ns
    assert by.rows["below_peak_ns"][0] == by.rows["below_peak_ns"].max()


def test_nothing_to_go_by_is_one_line_and_no_rows():
    trace = SAMPLES / "reload" / "rank0.pt.trace.json.gz"
    by = analysis_of(trace, by="layer", schedule="none").places
    assert by.to_document().rows is None
    assert by.to_document().total_ns > 0
    assert "with_stack=True" in by.notes[0]


def test_stages_of_a_pipeline_hold_layers_of_their_own():
    rows = analysis_of(SAMPLES / "1f1b", by="layer").places.rows.filter(
        pl.col("layer").is_not_null()
    )
    assert rows.select("stage", "layer").rows() == [
        (stage, layer) for stage in range(4) for layer in range(3)
    ]
    # 4 linears and attention, forward and backward, 8 micro-batches.
    assert rows["calls"].to_list() == [112] * 12


def test_a_loaded_trace_and_annotations():
    trace = Trace((RankEvents(renamed(), rank().source),), ())
    rows = analyze(trace, by="annotation", schedule="none").places.rows
    named = rows.filter(pl.col("path").str.contains("^layer "))
    assert sorted(named["path"].to_list()) == [f"layer {n}" for n in range(TRUTH["layers"])]
    assert analyze(trace, by="layer", schedule="none").places.rows["evidence"][0] == "annotation"


def test_other_words_are_refused():
    with pytest.raises(OptionError, match="cannot show the step by 'kernel'"):
        analyze(SAMPLES / "layers", by="kernel")


@pytest.mark.parametrize(
    ("name", "number"),
    [("Layer_12", 12), ("decoder.layers.3.self_attn", 3), ("block 7", 7), ("FSDP::pre_forward (layers.0)", 0),
     ("layer[5]", 5), ("stage 4", None), ("flash 3", None), ("layernorm", None), ("launch_h2d 3", None)],
)  # fmt: skip
def test_numbers_of_layers_in_names(name, number):
    result = layer_number(name)
    assert (result and result[1]) == number


def calls(*rows):
    return Frames.of(
        pl.DataFrame([{"tid": 1, "start_ns": s, "end_ns": e, "name": n} for n, s, e in rows])
    )


def layers_of_calls(frames):
    """The layers of module calls whose innermost ones launch as much each."""
    own_ns = np.where(np.isin(np.arange(len(frames)), frames.parent), 0, 10)
    return module_layers(frames, own_ns)


def test_layers_hold_most_of_the_compute():
    """A text encoder of two layers beside a model that computes more without any."""
    blocks = (("Block_0", 1, 30), ("Linear_0", 2, 3), ("Block_1", 40, 80), ("Linear_1", 41, 42))
    frames = calls(("Encoder_0", 0, 90), *blocks, ("Unet_0", 100, 110))
    encoder = np.array([0, 0, 25, 0, 25, 50])
    assert module_layers(frames, encoder).max() == 1
    assert module_layers(frames, encoder + np.array([0, 0, 0, 0, 0, 1])).max() == -1


def stages(inner_ns):
    """Two stages of two blocks each that take *inner_ns* of its 100."""
    rows, block = [], 0
    for stage in range(2):
        start = 1000 * stage
        rows.append((f"Stage_{stage}", start, start + 100))
        for half in range(2):
            begin = start + half * inner_ns // 2
            rows += [
                (f"Block_{block}", begin, begin + inner_ns // 2),
                (f"Linear_{block}", begin + 1, begin + 2),
            ]
            block += 1
    return calls(*rows)


def test_blocks_that_fill_their_stage_are_the_layers():
    assert layers_of_calls(stages(80)).max() == 3
    assert layers_of_calls(stages(76)).max() == 1


def test_leaves_are_layers_only_where_nothing_else_is():
    alone = calls(("Sequential_0", 0, 90), ("Linear_0", 1, 30), ("Linear_1", 40, 80))
    assert layers_of_calls(alone).tolist() == [-1, 0, 1]
    none = calls(("Model_0", 0, 90), ("Linear_0", 1, 30), ("Norm_0", 40, 80))
    assert layers_of_calls(none).tolist() == [-1, -1, -1]


def test_fsdp_hooks_of_a_framework(corpus):
    result = analyze(
        corpus.parent / "frameworks" / "titan-fsdp", by="layer", schedule="none", ranks=[0]
    )
    rows = result.places.rows.filter(pl.col("layer").is_not_null())
    # 57 forward products: 7 in each of 8 layers, and the head.
    assert rows["layer"].to_list() == list(range(8))
    assert rows["count"].n_unique() == 1
    assert set(rows["evidence"]) == {"annotation"}


def count_layers(labelled, host):
    """The number of layers that repetition shows; None if it shows none."""
    repeated = repeated_layers(labelled, host)
    return None if repeated is None else repeated.kernels["layer"].n_unique()


CUTS = {
    "operators": pl.col("kind") != "cpu_op",
    "ranges": pl.col("kind") != "annotation",
    "launches": ~pl.col("kind").is_in(("runtime", "driver")),
}


@pytest.mark.parametrize("cut", [*CUTS, "numbers"])
@pytest.mark.parametrize(("sample", "number", "layers"), [("dualpipe", 3, 3), ("1f1b", 0, 3)])
def test_the_number_of_layers_is_right_or_not_given(sample, number, layers, cut):
    events = load(SAMPLES / sample, ranks=[number]).rank(number).events
    mute = events.with_columns(sequence=pl.lit(None, pl.Int64))
    events = events.filter(CUTS[cut]) if cut in CUTS else mute
    result = count_layers(classify(events), Host.of(events))
    assert result in (layers, None)
    assert result == layers or cut == "launches" or (sample == "dualpipe" and cut != "ranges")


def test_forwards_must_agree(labelled_layers):
    assert count_layers(*labelled_layers([3, 3])) == 3
    assert count_layers(*labelled_layers([3, 4])) is None
    assert count_layers(*labelled_layers([3], others=12)) == 3
    assert count_layers(*labelled_layers([3], others=13)) is None


@pytest.mark.parametrize(
    ("launches", "layers"),
    [((5, 6, 7), [-1, -1, -1]), ((5, 45, 85), [0, 1, 2]), ((5, 6, 45), [0, 0, 1])],
    ids=["all in layer 0", "one in each", "in two of three"],
)
def test_communication_belongs_to_layers_that_each_launch_their_own(
    labelled_layers, launches, layers
):
    gathers = [
        {"id": 100 + n, "kind": "kernel", "name": "nccl", "label": "dp_comm", "launch_ns": ns, "launch_tid": 1,
         "start_ns": ns, "end_ns": ns + 1} for n, ns in enumerate(launches)
    ]  # fmt: skip
    # A layer is launched in 40 ns.
    kernels = labelled_layers([3])[0].with_columns(launch_tid=pl.lit(1, pl.Int64))
    events = pl.concat([kernels, conform(pl.DataFrame(gathers), LABELLED)])
    assert layers_by_repetition(EVENTS.to_frame(), events)[-3:].tolist() == layers


@pytest.fixture
def labelled_layers():
    """Forwards of so many layers of four kernels each, a backward after each, and forwards of *others* kernels."""

    def build(counts, others=0):
        rows, start, number = [], 0, 0
        for names in [["gemm", "a", "b", "c"] * count for count in counts] + (
            [[f"x{n}" for n in range(others)]] * bool(others)
        ):
            for name in names:
                rows.append(
                    {
                        "label": "forward",
                        "name": name,
                        "launch_ns": start,
                        "autograd_sequence": number,
                    }
                )
                start, number = start + 10, number + 1
            for back in range(len(names)):
                low = {
                    "label": "dgrad",
                    "name": f"d{back}",
                    "node": "N",
                    "autograd_sequence": number - 1 - back,
                }
                rows.append({**low, "launch_ns": start})
                start += 10
        made = [
            {
                "id": n,
                "kind": "kernel",
                "start_ns": r["launch_ns"],
                "end_ns": r["launch_ns"] + 5,
                **r,
            }
            for n, r in enumerate(rows)
        ]
        return conform(pl.DataFrame(made), LABELLED), Host.of(EVENTS.to_frame())

    return build


def test_a_graph_launches_all_layers_at_one_moment(corpus):
    trace = corpus / "tracelens" / "qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz"
    rows = analyze(trace, by="layer", schedule="none").places.rows.filter(
        pl.col("layer").is_not_null()
    )
    assert rows["layer"].to_list() == list(range(48))  # as the model is published
    assert rows["count"].n_unique() == 1
    assert set(analyze(trace, by="module", schedule="none").places.rows["evidence"]) == {
        "name, neighbour",
        "name, shapes",
        "name",
        None,
    }


def test_thresholds_are_what_they_are():
    assert (MAX_KERNELS_PER_OPERATOR, MIN_STACK_TO_NAME_RATIO, MIN_STACK_TO_RULE_RATIO) == (
        4,
        0.99,
        0.5,
    )

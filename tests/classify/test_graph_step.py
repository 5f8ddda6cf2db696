"""A recorded step that one CUDA graph replays: forward, backward and optimizer without any operator.

The program: four layers of width 512 with RMS norms, rotary embeddings whose table is a product,
flash attention and an MLP; cross entropy; AdamW. Three steps were recorded.
"""

from pathlib import Path

import polars as pl
import pytest

from tracekit import load

STEPS = (1, 2, 3)
LAYERS = 4


@pytest.fixture(scope="module")
def labelled():
    folder = Path(__file__).parents[1] / "data" / "graph-step"
    return (
        load(folder, file_rank=0)
        .labelled.sort("start_ns")
        .with_columns(pl.col("name").cast(pl.String))
    )


@pytest.mark.parametrize("step", STEPS)
def test_everything_before_the_loss_is_forward(labelled, step):
    """The first kernel gathers embeddings, the products of all layers and of the head come before the log-softmax."""
    kernels = labelled.filter((pl.col("step") == step) & (pl.col("kind") == "kernel"))
    loss = int(kernels["name"].str.contains("SoftMaxForward").arg_max())
    forward = kernels.head(loss + 1)
    assert "gather" in forward["name"][0]
    # Four linear layers and one attention per layer, the head, and the product for the rotary
    # table.
    assert forward["name"].str.contains("nvjet|gemm").sum() == 4 * LAYERS + 1 + 1
    assert forward["name"].str.contains("sdpa").sum() == LAYERS
    assert forward["label"].unique().to_list() == ["forward"]


@pytest.mark.parametrize("step", STEPS)
def test_products_of_the_backward_are_gradients_of_inputs_and_of_weights(labelled, step):
    kernels = labelled.filter((pl.col("step") == step) & pl.col("name").str.contains("nvjet|gemm"))
    counts = dict(kernels["label"].value_counts().iter_rows())
    assert (counts["wgrad"], counts["dgrad"]) == (4 * LAYERS + 1, 4 * LAYERS + 1)

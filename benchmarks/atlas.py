"""What a GPU reaches: products, attention, convolutions, norms, optimizers and memory, for ``--gpu-rates``.

    python benchmarks/atlas.py rates.csv

Needs PyTorch with a GPU, and half a minute. Each kind of work runs at several sizes; the table holds the
lower quartile, the median and the upper quartile of what they reach.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

MIN_TIMED_MS = 20.0
"""Time of the calls that one size is measured over, at least."""
TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PRODUCTS = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 1024, 4096),
    (8192, 4096, 1024),
    (4096, 768, 3072),
)
"""Rows, inner size and columns."""
ATTENTIONS = ((8, 16, 1024, 64), (4, 16, 2048, 64), (2, 16, 4096, 128), (2, 16, 8192, 64))
"""Batch, heads, tokens and size of a head; causal, forward and backward."""
CONVOLUTIONS = ((64, 64, 56), (64, 128, 28), (64, 256, 14), (32, 256, 28))
"""Images, channels and their height and width; 3×3, channels last."""
NORMS = ((32, 64, 128), (32, 256, 64), (64, 256, 56), (32, 512, 32))
"""Images, channels and their height and width, of batch norms that the GPU limits, not the host."""
MOVED_MB = (64, 256, 1024)
"""Data that an elementwise kernel reads and writes."""

Row = tuple[str, str, str, float, float, float]


def main() -> None:
    """Measure everything and write the table."""
    rows = [
        *measure_products(),
        measure_attention("attention", is_causal=True),
        measure_attention("full_attention", is_causal=False),
        *measure_convolutions(),
        measure_memory(),
        *measure_batch_norms(),
        measure_optimizer(),
    ]
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("work", "type", "unit", "low", "likely", "high"))
        writer.writerows(rows)
    print(f"{torch.cuda.get_device_name()}: {len(rows)} rates in {sys.argv[1]}")


def measure_products() -> list[Row]:
    """Return the rates of matrix products by type."""
    rows = []
    for name, dtype in TYPES.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        rates = []
        for size, inner, columns in PRODUCTS:
            left = torch.randn(size, inner, device="cuda", dtype=dtype)
            right = torch.randn(columns, inner, device="cuda", dtype=dtype)
            seconds = time_call(lambda left=left, right=right: functional.linear(left, right))
            rates.append(2 * size * inner * columns / seconds / 1e12)
        rows.append(as_row("product", name, "TFLOP/s", rates))
    return rows


def measure_attention(work: str, *, is_causal: bool) -> Row:
    """Return the rates of attention in one kernel; behind a causal mask its scores are counted by half."""
    rates = []
    for batch, heads, tokens, size in ATTENTIONS:
        shape = (batch, heads, tokens, size)
        query, key, value = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )

        def both_ways(query=query, key=key, value=value) -> None:
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
            out.backward(out)

        flop = 4 * batch * heads * tokens**2 * size * (1 + 2.5) / (2 if is_causal else 1)
        rates.append(flop / time_call(both_ways) / 1e12)
    return as_row(work, "*", "TFLOP/s", rates)


def measure_convolutions() -> list[Row]:
    """Return the rates of convolutions in bf16."""
    rates = []
    for images, channels, size in CONVOLUTIONS:
        layout = torch.channels_last
        image = torch.randn(images, channels, size, size, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(channels, channels, 3, 3, device="cuda", dtype=torch.bfloat16)
        image, weight = image.to(memory_format=layout), weight.to(memory_format=layout)
        seconds = time_call(
            lambda image=image, weight=weight: functional.conv2d(image, weight, padding=1)
        )
        rates.append(2 * images * size**2 * channels**2 * 9 / seconds / 1e12)
    return [as_row("convolution", "*", "TFLOP/s", rates)]


def measure_batch_norms() -> list[Row]:
    """Return the bandwidth that batch norms with channels last reach, both ways: they move their images eight times."""
    rows = []
    for name in ("fp32", "fp16", "bf16"):
        rates = []
        for images, channels, size in NORMS:
            image = torch.randn(images, channels, size, size, device="cuda", dtype=TYPES[name])
            image = image.to(memory_format=torch.channels_last).requires_grad_()
            norm = torch.nn.BatchNorm2d(channels, device="cuda", dtype=TYPES[name])

            def both_ways(image=image, norm=norm) -> None:
                image.grad = None
                out = norm(image)
                out.backward(out)

            rates.append(8 * image.nbytes / time_call(both_ways) / 1e9)
        rows.append(as_row("batch_norm", name, "GB/s", rates))
    return rows


def measure_optimizer() -> Row:
    """Return the bandwidth that a fused optimizer reaches: AdamW moves its parameters seven times."""
    rates = []
    for count, size in ((12, 1 << 24), (50, 1 << 22), (24, 1 << 23)):
        parameters = [torch.randn(size, device="cuda", requires_grad=True) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.AdamW(parameters, fused=True)
        rates.append(7 * count * size * 4 / time_call(optimizer.step) / 1e9)
    return as_row("optimizer", "*", "GB/s", rates)


def measure_memory() -> Row:
    """Return the bandwidth that elementwise kernels reach."""
    rates = []
    for megabytes in MOVED_MB:
        data = torch.randn(megabytes << 18, device="cuda")
        for call in (data.add_, data.mul_):
            seconds = time_call(lambda call=call: call(1.0))
            rates.append(2 * data.nbytes / seconds / 1e9)
    return as_row("memory", "*", "GB/s", rates)


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that the GPU takes for a call: the median of several batches of calls."""
    for _ in range(3):
        call()
    once_ms = time_batch(call, 1)
    calls = max(1, int(MIN_TIMED_MS / 5 / max(once_ms, 1e-3)))
    return statistics.median(time_batch(call, calls) / calls for _ in range(5)) / 1e3


def time_batch(call: Callable[[], object], calls: int) -> float:
    """Return the milliseconds between the events around some calls."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def as_row(work: str, dtype: str, unit: str, rates: list[float]) -> Row:
    """Return a row of the table: quartiles of rates."""
    low, likely, high = statistics.quantiles(rates, n=4, method="inclusive")
    return work, dtype, unit, round(low, 1), round(likely, 1), round(high, 1)


if __name__ == "__main__":
    main()

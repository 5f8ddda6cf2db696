"""Peaks of GPUs against the figures of their data sheets, most of which hold for whole systems and with sparsity."""

import tomllib

import pytest

from tracekit.metrics.peaks import BUILT_IN_PEAKS, find_gpu, peak_tflop_s

SHEETS = [
    # name that the driver gives, type, TFLOP/s of the sheet, GPUs that they are of, whether with
    # sparsity
    ("NVIDIA GB300", "fp8", 720_000, 72, True),
    ("NVIDIA GB300", "bf16", 360_000, 72, True),
    ("NVIDIA GB300", "tf32", 180_000, 72, True),
    ("NVIDIA GB200", "fp8", 720_000, 72, True),
    ("NVIDIA GB200", "bf16", 360_000, 72, True),
    ("NVIDIA GB200", "tf32", 180_000, 72, True),
    ("NVIDIA B300 SXM6 AC", "fp8", 72_000, 8, True),
    ("NVIDIA B300 SXM6 AC", "bf16", 36_000, 8, True),
    ("NVIDIA B300 SXM6 AC", "tf32", 18_000, 8, True),
    ("NVIDIA B300 SXM6 AC", "fp64", 10, 8, False),
    ("NVIDIA B200", "fp8", 72_000, 8, True),
    ("NVIDIA B200", "bf16", 36_000, 8, True),
    ("NVIDIA B200", "tf32", 18_000, 8, True),
    ("NVIDIA B200", "fp64", 296, 8, False),
    ("NVIDIA H200", "bf16", 1_979, 1, True),
    ("NVIDIA H200 NVL", "bf16", 1_671, 1, True),
    ("NVIDIA H200 NVL", "fp8", 3_341, 1, True),
    ("NVIDIA H100 NVL", "bf16", 1_671, 1, True),
    ("NVIDIA H100 NVL", "tf32", 835, 1, True),
    ("NVIDIA H100 80GB HBM3", "bf16", 1_979, 1, True),
    ("NVIDIA H100 PCIe", "bf16", 1_513, 1, True),
    ("NVIDIA A100-SXM4-80GB", "bf16", 312, 1, False),
    ("NVIDIA A10G", "bf16", 140, 1, True),
    ("NVIDIA A10G", "tf32", 70, 1, True),
    ("NVIDIA A10", "bf16", 125, 1, False),
    ("NVIDIA L40S", "bf16", 724, 1, True),
    ("Tesla V100-SXM2-16GB", "fp16", 125, 1, False),
    ("Tesla V100-PCIE-32GB", "fp16", 112, 1, False),
    ("AMD Instinct MI300X VF", "bf16", 1_307.4, 1, False),
    ("AMD Instinct MI250X", "bf16", 383, 2, False),
    ("AMD Instinct MI250", "bf16", 362, 2, False),
]
BANDWIDTHS = {
    # GB/s of one GPU's memory
    "NVIDIA GeForce RTX 5090": 1_792,
    "NVIDIA GeForce RTX 4090": 1_008,
    "NVIDIA GeForce RTX 4080": 717,
    "NVIDIA GeForce RTX 3090": 936,
    "NVIDIA GeForce RTX 3080": 760,
    "NVIDIA GB200": 576_000 / 72,
    "NVIDIA GB300": 576_000 / 72,
    "NVIDIA B200": 64_000 / 8,
    "NVIDIA GH200 480GB": 4_000,
    "NVIDIA GH200 144G HBM3e": 4_900,
    "NVIDIA H200": 4_800,
    "NVIDIA H200 NVL": 4_800,
    "NVIDIA H100 80GB HBM3": 3_350,
    "NVIDIA H100 NVL": 3_900,
    "NVIDIA H100 PCIe": 2_000,
    "NVIDIA H20": 4_000,
    "NVIDIA A100-SXM4-40GB": 1_555,
    "NVIDIA A100-PCIE-40GB": 1_555,
    "NVIDIA A100-SXM4-80GB": 2_039,
    "NVIDIA A100 80GB PCIe": 1_935,
    "NVIDIA A10G": 600,
    "Tesla V100-SXM2-16GB": 900,
    "Tesla V100S-PCIE-32GB": 1_134,
    "AMD Instinct MI300X": 5_300,
}


@pytest.mark.parametrize(("device", "dtype", "sheet_tflop_s", "gpus", "with_sparsity"), SHEETS)
def test_a_peak_is_that_of_one_gpu_without_sparsity(
    device, dtype, sheet_tflop_s, gpus, with_sparsity
):
    dense = sheet_tflop_s / gpus / (2 if with_sparsity else 1)
    assert peak_tflop_s(device, dtype) == pytest.approx(dense, rel=2e-3)


@pytest.mark.parametrize(("device", "gb_s"), BANDWIDTHS.items())
def test_memory_is_as_fast_as_the_sheet_says(device, gb_s):
    assert find_gpu(device).memory_gb_s == gb_s


def test_every_gpu_has_a_source_and_is_found_by_its_own_name():
    """A pattern that stands behind a wider one would never be reached."""
    gpus = tomllib.loads(BUILT_IN_PEAKS.read_text(encoding="utf-8"))["gpu"]
    assert all(gpu["source"] for gpu in gpus)
    names = {*(row[0] for row in SHEETS), *BANDWIDTHS, "NVIDIA L4", "Tesla T4"}
    names |= {f"AMD Instinct {name}" for name in ("MI355X", "MI350X", "MI325X", "MI300A", "MI210")}
    assert {find_gpu(name).pattern for name in names} == {gpu["pattern"] for gpu in gpus}


def test_all_types_of_a_tensor_core_are_related():
    """Half the bits, twice the rate; data sheets round."""
    for gpu in tomllib.loads(BUILT_IN_PEAKS.read_text(encoding="utf-8"))["gpu"]:
        peaks = gpu["tflop_s"]
        if "bf16" in peaks:
            assert peaks["bf16"] == peaks["fp16"]
        for narrow, wide in (("fp8", "bf16"), ("bf16", "tf32")):
            if narrow in peaks and wide in peaks:
                assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.02), gpu["pattern"]


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
    ],
)
def test_geforce_cards_have_the_rate_at_which_frameworks_sum(name, bf16):
    assert peak_tflop_s(name, "bf16") == bf16


def test_other_cards_of_the_same_number_are_unknown():
    assert find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert find_gpu("NVIDIA GeForce RTX 3090 Ti") is None

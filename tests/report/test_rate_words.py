"""The peak that a rate is compared with is named."""

from __future__ import annotations

import pytest

from tests.findings.conftest import Recording
from tests.kept import analysis_of
from tracekit import analyze
from tracekit.report.sections.rates import products_table

SIZE = 2048
FLOP = 2 * SIZE**3


@pytest.fixture
def products_of(tmp_path):
    """Return the table of one product of 2048 × 2048 in float32 for each kernel, which takes that many ms."""

    def make(**ms_by_kernel):
        recording = Recording()
        recording.step(1, 0.0, 10.0)
        shape = [SIZE, SIZE]
        args = {"Input Dims": [shape, shape], "Input type": ["float", "float"]}
        start = 0.1
        for name, length in ms_by_kernel.items():
            recording.kernel(start - 0.05, start, start + length, name=name, args=args)
            start += length
        recording.write(tmp_path)
        return products_table(analyze(tmp_path, schedule="none"))

    return make


def test_utilisation_of_one_type_names_its_peak(products_of):
    table = products_of(cutlass_tensorop_s1688tf32gemm=1.0)
    assert any("of the GPU's peak in tf32" in note for note in table.notes)
    assert [row[2] for row in table.rows] == ["tf32"] * len(table.rows)


def test_utilisation_of_two_types_is_of_one_named_peak(products_of):
    """2 × 17.2 GFLOP in a span of 2 ms are 3.5 % of the peak of TF32; the one in fp32 reaches 26 % of its own."""
    table = products_of(cutlass_tensorop_s1688tf32gemm=1.0, cutlass_simt_sgemm=1.0)
    of_span = 2 * FLOP / (494.7e3 * 2e6)
    (sentence,) = [note for note in table.notes if "utilisation" in note]
    assert f"{100 * of_span:.1f} % of the GPU's peak in tf32" in sentence
    assert "each product against the peak of its own type" in sentence
    total = next(row for row in table.rows if not row[1])
    assert total[2] == "fp32, tf32"


def test_a_row_of_products_leads_to_the_kernels_of_its_label_and_module(samples):
    """The search travels with the row: nothing is read back from the text of its cells."""
    table = products_table(analysis_of(samples / "1f1b"))
    searches = {row[0]: search for row, search in zip(table.rows, table.searches, strict=True)}
    assert searches["dgrad"] == "label:=dgrad"
    assert searches["dgrad mlp"] == 'label:=dgrad module:"=mlp"'

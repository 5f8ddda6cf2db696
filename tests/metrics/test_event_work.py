"""Work of events from shapes and types of their inputs."""

from __future__ import annotations

import pytest

from tracekit.metrics.event_work import is_mask_of, read_inputs, read_tensors

BF16 = "c10::BFloat16"


@pytest.mark.parametrize(
    ("shape", "is_mask"),
    [
        ([8, 9], True),
        ([1, 1, 8, 9], True),
        ([2, 1, 8, 9], True),
        ([2, 4, 8, 9], False),  # as large as the scores
        ([9], False),
        ([8, 1], False),
        ([1, 9], False),
        ([9, 8], False),
    ],
)
def test_a_mask_has_the_last_two_sizes_of_the_scores_and_is_smaller(shape, is_mask):
    assert is_mask_of(shape, [2, 4, 8, 9]) is is_mask


@pytest.mark.parametrize(
    ("mask", "scores"), [([8, 9], [8, 9]), ([1, 9], [4, 1, 9]), ([8, 1], [4, 8, 1])]
)
def test_what_has_no_rows_and_columns_has_no_mask(mask, scores):
    assert not is_mask_of(mask, scores)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "figures"),
    [
        # The inputs are read and as much as the largest is written.
        ("[[8,4],[4]]", f'["float","{BF16}"]', ([8, 4], 32, 4, 4, 128 + 8 + 128)),
        ("[[4],[8,4]]", f'["float","{BF16}"]', ([8, 4], 32, 2, 2, 16 + 64 + 64)),
        (
            "[[8,4],[8,4]]",
            f'["float","{BF16}"]',
            ([8, 4], 32, 4, 2, 128 + 64 + 128),
        ),  # a copy to another type
        ("[[8,4],[8,4]]", '["float","long int"]', ([8, 4], 32, 4, 4, 128 + 256 + 256)),
        ("[[8,4],[]]", '["float","Scalar"]', ([8, 4], 32, 4, 4, 256)),
        ("[[8,4],[4]]", '["float","a type"]', ([8, 4], 32, 4, 4, None)),
        (
            "[[[8],[4]]]",
            '["TensorList"]',
            ([12], 12, None, None, 48),
        ),  # of a list two bytes each are sure
        ("[[],[]]", '["Scalar","Scalar"]', (None, None, None, None, None)),
        (None, None, (None, None, None, None, None)),
    ],
)
def test_inputs_have_sizes_and_move_bytes(shapes, dtypes, figures):
    read = read_tensors(shapes, dtypes)
    assert (read.dims, read.elements, read.width, read.narrow_width, read.bytes) == figures


@pytest.mark.parametrize(
    ("dtypes", "has_fp64", "has_fp32"),
    [
        ('["float","float"]', False, True),
        ('["float","double"]', True, True),
        ('["double","float"]', True, False),  # the largest is not in float32
        (f'["{BF16}","float"]', False, False),
    ],
)
def test_any_input_in_float64_counts_and_the_largest_in_float32(dtypes, has_fp64, has_fp32):
    read = read_tensors("[[8,4],[4]]", dtypes)
    assert (read.has_fp64, read.has_fp32) == (has_fp64, has_fp32)


def test_a_mask_is_noticed_among_the_inputs():
    assert read_tensors("[[2,4,8,9],[8,9]]", '["float","bool"]').is_masked
    assert not read_tensors("[[2,4,8,9],[9]]", '["float","bool"]').is_masked


def test_a_list_of_tensors_is_one_input_of_unknown_type():
    assert read_inputs("[[[8],[4]],[3],7]", '["TensorList","float"]') == [(12, 2), (3, 4)]
    assert read_inputs("[[3]]", None) == [(3, 2)]

"""Concrete inputs and strides of operators: which are read, and what stays of them."""

from __future__ import annotations

import json

import pytest

from tracekit.parsers import kineto
from tracekit.redact import redact

CONVOLUTION = {
    "Concrete Inputs": ["", "", "[3, 3]", "[2, 2]", "1", "False", "0.10000000000000001", "zeros"],
    "Input Strides": [[64, 8, 8, 1], [9, 9, 3, 1], [], [], [], [], [], []],
}
READ_CONVOLUTION = "[null,null,[3,3],[2,2],1,false,0.1,null]"


def read_inputs(source):
    return kineto.read(source).events.select("concrete", "strides").rows()


def test_inputs_of_an_operator_are_read(trace, event):
    [(concrete, strides)] = read_inputs(trace(event("aten::cudnn_convolution", **CONVOLUTION)))
    assert concrete == READ_CONVOLUTION
    assert strides == "[[64,8,8,1],[9,9,3,1],[],[],[],[],[],[]]"


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("aten::select", True),
        ("house::fused_norm", True),
        ("aten::view", False),
        ("aten::views", True),
        ("torch::autograd::AccumulateGrad", False),
        ("ConvolutionBackward0", False),
        ("ProfilerStep#3", False),
    ],
)
def test_inputs_of_views_and_of_what_is_no_operator_are_not_read(trace, event, name, is_read):
    [(concrete, strides)] = read_inputs(trace(event(name, **CONVOLUTION)))
    assert (concrete is not None, strides is not None) == (is_read, is_read)


def test_the_order_of_keys_does_not_matter(trace, event):
    forward = event("aten::mm", **CONVOLUTION)
    view = event("aten::view", **CONVOLUTION)
    turned = [dict(reversed(each.items())) for each in (forward, view)]
    assert read_inputs(trace(*turned)) == read_inputs(trace(forward, view))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("17", 17),
        ("-1", -1),
        ("True", True),
        ("1.", 1),
        ("1e-08", 1e-08),
        ("0.90000000000000002", 0.9),
        ("[1, 2]", [1, 2]),
        ("[]", []),
        ("[True, False]", [True, False]),
        (str([1] * 16), [1] * 16),
        (str([1] * 17), None),
        ("[[1], [2]]", None),
        ("[1, secret]", None),
        ("9223372036854775807", None),
        ("1234567890", None),
        ("1e999", None),
        ("nan", None),
        ("cuda:0", None),
        ("4155551234.5", 4155550000),
        ("4 4", None),
    ],
)
def test_of_values_numbers_booleans_and_short_lists_are_kept(trace, event, tmp_path, text, value):
    source = {"traceEvents": [event("aten::fill_", **{"Concrete Inputs": [text]})]}
    [(concrete, _)] = read_inputs(trace(*source["traceEvents"]))
    (tmp_path / "trace.json").write_text(json.dumps(source))
    redact(tmp_path / "trace.json", tmp_path / "redacted.json")
    assert read_inputs(tmp_path / "redacted.json") == [(concrete, None)]
    assert json.loads(concrete) == [value]


def test_strides_of_many_tensors_are_not_kept(trace, event):
    strides = [[[4, 1]] * 16, [[4, 1]] * 17, [8, 1]]
    [(_, kept)] = read_inputs(trace(event("aten::_fused_adamw_", **{"Input Strides": strides})))
    assert json.loads(kept) == [[[4, 1]] * 16, None, [8, 1]]


@pytest.mark.parametrize("value", ["text", {"a": 1}, 3, None])
def test_inputs_that_are_no_list_are_unknown(trace, event, value):
    arguments = {"Concrete Inputs": value, "Input Strides": value}
    assert read_inputs(trace(event("aten::mm", **arguments))) == [(None, None)]


def test_a_number_given_as_a_word_goes_from_redacted_inputs(event, tmp_path):
    arguments = {"Concrete Inputs": ["[98765, 4]", "98765", "3"]}
    (tmp_path / "trace.json").write_text(
        json.dumps({"traceEvents": [event("aten::mm", **arguments)]})
    )
    redact(tmp_path / "trace.json", tmp_path / "redacted.json", words=["98765"])
    assert read_inputs(tmp_path / "redacted.json") == [("[null,null,3]", None)]


def test_views_lose_their_inputs_in_a_redacted_copy(event, tmp_path):
    events = [event("aten::view", **CONVOLUTION), event("aten::mm", **CONVOLUTION)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    redact(tmp_path / "trace.json", tmp_path / "redacted.json")
    view, product = json.loads((tmp_path / "redacted.json").read_text())["traceEvents"]
    assert "Concrete Inputs" not in view["args"]
    assert product["args"]["Concrete Inputs"] == [
        "",
        "",
        "[3, 3]",
        "[2, 2]",
        "1",
        "False",
        "0.1",
        "",
    ]

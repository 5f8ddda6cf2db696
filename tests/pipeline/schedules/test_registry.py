"""Names, sizes, times and files that are wrong, and schedules of one's own."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tracekit.cli import make_app
from tracekit.errors import InputError, OptionError, ScheduleError
from tracekit.pipeline import schedules
from tracekit.pipeline.schedules import (
    Times,
    describe,
    generate,
    names,
    read_orders,
    register,
    simulate,
    unregister,
    write_orders,
)
from tracekit.pipeline.schedules.two_buffers import weight_reload

ALL = [
    "gpipe",
    "1f1b",
    "interleaved",
    "interleaved-overlap",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-2p",
    "interleaved-zb",
    "zb-v",
    "v-half",
    "v-min",
    "chimera",
    "dualpipe",
    "dualpipev",
    "weight-reload",
]


def test_the_package_lists_its_public_names_only():
    assert dir(schedules) == sorted(schedules.__all__)


def test_all_are_there_and_say_what_they_are():
    assert names() == ALL
    for entry in map(describe, ALL):
        assert entry.summary
        assert entry.source
        assert not entry.constraint or entry.constraint.startswith(f"{entry.name} needs ")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("dualpip", "dualpipe"), ("1f1", "1f1b"), ("zbv", "zb-v"), ("interleave", "interleaved")],
)
def test_unknown_names_suggest_the_nearest(wrong, right):
    with pytest.raises(ScheduleError, match=f"did you mean {right}"):
        generate(wrong, pp=2, microbatches=2)


def test_a_name_like_nothing_lists_them():
    with pytest.raises(ScheduleError, match="known: gpipe, 1f1b"):
        describe("qqqqqq")


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "dualpipe",
            {"pp": 8, "microbatches": 12},
            "dualpipe needs an even number of ranks and at least 2×pp micro-batches; got pp=8, microbatches=12",
        ),
        ("dualpipe", {"pp": 3, "microbatches": 12}, "even number of ranks"),
        (
            "dualpipe",
            {"pp": 2, "microbatches": 5},
            "dualpipe needs an even number of micro-batches; got pp=2, micro",
        ),
        (
            "dualpipev",
            {"pp": 4, "microbatches": 7},
            "at least 2×pp micro-batches; got pp=4, microbatches=7",
        ),
        ("chimera", {"pp": 4, "microbatches": 6}, "multiples of pp"),
        ("chimera", {"pp": 3, "microbatches": 6}, "even number of ranks"),
        (
            "interleaved",
            {"pp": 2, "microbatches": 5},
            "interleaved needs micro-batches that divide",
        ),
        ("interleaved", {"pp": 4, "microbatches": 8, "group": 3}, "group=3"),
        ("interleaved", {"pp": 4, "microbatches": 9, "group": 8}, "rest is 0 or at least pp"),
        ("1f1b", {"pp": 4, "microbatches": 8, "group": 4}, "has no groups"),
        ("1f1b", {"pp": 4, "microbatches": 8, "virtual": 2}, "virtual=1"),
        ("1f1b", {"pp": 0, "microbatches": 8}, "pp must be 1 or more; got 0"),
        ("1f1b", {"pp": 1, "microbatches": -3}, "microbatches must be 1 or more; got -3"),
        ("interleaved", {"pp": 1, "microbatches": 1, "virtual": 0}, "virtual must be 1 or more"),
        ("weight-reload", {"pp": 1, "microbatches": 1}, "not a pipeline schedule"),
        ("1f1b", {"pp": 100_000, "microbatches": 100_000}, "more than"),
    ],
)
def test_wrong_sizes_are_told_in_words(name, sizes, message):
    with pytest.raises(ScheduleError) as caught:
        generate(name, **sizes)
    assert message in str(caught.value)


def test_group_is_kept_and_overrides():
    assert generate("interleaved", pp=4, microbatches=8).group == 4
    assert generate("interleaved", pp=4, microbatches=10).group == 5
    assert generate("interleaved", pp=2, microbatches=5, group=3).group == 3
    assert generate("1f1b", pp=2, microbatches=5).group is None


def test_register_your_own():
    def last_first(sizes):
        order = range(sizes.microbatches)
        return [
            [*(f"{r}F{i}" for i in order), *(f"{r}B{i}" for i in reversed(order))]
            for r in range(sizes.pp)
        ]  # lists of words are not ops: joined below

    register(
        "last-first",
        lambda sizes: [" ".join(words) for words in last_first(sizes)],
        summary="GPipe, last in, first out",
        constraint="last-first needs two ranks",
        holds=lambda sizes: sizes.pp == 2,
    )
    try:
        assert generate("last-first", pp=2, microbatches=2).orders()[1] == [
            "1F0",
            "1F1",
            "1B1",
            "1B0",
        ]
        assert simulate(generate("last-first", pp=2, microbatches=2)).makespan == 9
        with pytest.raises(ScheduleError, match="last-first needs two ranks; got pp=3"):
            generate("last-first", pp=3, microbatches=2)
        with pytest.raises(ScheduleError, match="already a schedule called last-first"):
            register("last-first", last_first, summary="again")
    finally:
        unregister("last-first")
    assert "last-first" not in names()


def test_orders_go_to_a_file_and_back(tmp_path):
    for name in ("dualpipe", "interleaved-overlap", "zb-v", "chimera"):
        plan = generate(name, pp=4, microbatches=8)
        write_orders(plan, tmp_path / "mine.txt")
        read = read_orders(tmp_path / "mine.txt")
        assert read.ranks == plan.ranks
        assert (read.pp, read.microbatches) == (4, 8)
        assert simulate(read).makespan == simulate(plan).makespan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0B0\n1F0\n", "1B0 is missing"),
        ("0F0 0I0\n1F0 1B0\n", "0W0 is missing"),
        ("0F0 0B0 0F0\n1F0 1B0\n", r"0F0 appears 2 times \(0F0 on rank 0, 0F0 on rank 0\)"),
        ("0F0 0B0 0I0\n1F0 1B0\n", r"0B0 appears 2 times \(0B0 on rank 0, 0I0 on rank 0\)"),
        ("0F0 0B0\n0F0 0B0\n", r"0F0 appears 2 times \(0F0 on rank 0, 0F0 on rank 1\)"),
        ("0F0 0B0 1F0\n1B0\n", "1B0 is on rank 1, its forward on rank 0"),
        ("0F0 0B0\n2F0 2B0\n", "1F0 is missing"),
        ("0F0 0B0 0F2 0B2\n", "0F1 is missing"),
        ("0F0 0B0 0F999999999 0B999999999\n", "0F1 is missing"),
        ("0F0 0X0\n", r"line 1: '0X0' is not an op"),
        ("# only words\n\n", "has no ops"),
        ("0F0 0F99999999999999999999 0B0\n", "is not an op"),
    ],
)
def test_wrong_order_files(tmp_path, text, message):
    file = tmp_path / "mine.txt"
    file.write_text(text)
    with pytest.raises(ScheduleError, match=message):
        read_orders(file)
    result = CliRunner().invoke(make_app(), ["schedule", str(file)])
    assert isinstance(result.exception, ScheduleError)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_orders(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="not text"):
        read_orders(tmp_path / "binary.txt")
    with pytest.raises(InputError):
        read_orders(tmp_path)


@pytest.mark.parametrize("text", ["F", "F=", "F=x", "Q=1", "F=nan", "F==1", "1=F"])
def test_times_that_are_not_times(text):
    with pytest.raises(OptionError, match="is not NAME=number"):
        Times.parse(text)


@pytest.mark.parametrize(
    "times", [{"F": 0}, {"W": -1}, {"I": float("inf")}, {"P2P": -0.1}, {"F": "1"}, {"F": []}]
)
def test_times_out_of_range(times):
    with pytest.raises(OptionError):
        Times(**times)


@pytest.mark.parametrize(
    "times",
    [{"F": (1, 2, 3)}, {"F": [[1, 2, 3], [1, 2, 3]]}, {"P2P": [[0]]}, {"rank_factor": (1,)}],
)
def test_times_of_the_wrong_shape(times):
    with pytest.raises(ScheduleError, match="shape"):
        simulate(generate("1f1b", pp=2, microbatches=2), Times(**times))


def test_times_stay_hashable():
    assert hash(Times(F=[[1, 2], [3, 4]])) == hash(Times(F=((1, 2), (3, 4))))
    assert Times(I=2, W=3).B == 5
    assert Times.parse(" f=2 , P2P=0.5 ").scalars() == {
        "F": 2,
        "I": 1,
        "W": 1,
        "B": 2,
        "FB": 4,
        "P2P": 0.5,
    }


def test_json_of_a_schedule():
    data = simulate(generate("dualpipe", pp=8, microbatches=20)).to_dict()
    assert data["format"] == "tracekit.schedule/1"
    assert json.loads(json.dumps(data)) == data
    wanted = (
        "name pp microbatches virtual time ranks cells makespan "
        "bubble bubble_fraction bubble_rate_zb peak_activations"
    )
    assert set(wanted.split()) <= set(data)
    assert data["time"] == {"F": 1, "I": 1, "W": 1, "B": 2, "FB": 3, "P2P": 0}
    assert data["ranks"][0][:2] == ["0F0", "0F1"]
    assert "(0F7;7B13)" in data["ranks"][0]
    assert data["cells"][0].keys() >= {"rank", "op", "stage", "microbatch", "start", "end"}


@pytest.mark.parametrize(("ranks", "rounds"), [(0, 1), (1, 0), (-1, 2), (100_000, 1000)])
def test_weight_reload_sizes(ranks, rounds):
    with pytest.raises(ScheduleError):
        weight_reload(ranks, rounds)

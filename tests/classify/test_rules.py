"""Rules as data: order, overrides, files and their errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

import tracekit
from docsite.label_rules import evidence_rows
from tracekit._util.categories import LinearPattern
from tracekit.classify import Rule, RuleBook, builtin_rules, classify, load_rules
from tracekit.classify.rules import COLUMNS, TIERS, condition_problem, shipped_packs
from tracekit.errors import RuleError
from tracekit.schema import EVENTS, LABELLED, conform

PACKS = Path(tracekit.__file__).parent / "classify" / "packs"
GOOD = """
# a comment
[[rule]]
name = "mine"
label = "tp_comm"
pass = "forward"
module = "attention"
confidence = 0.5
when = { name = '^my_', stream = 7, launched = true, bytes = "< 10" }
unless = { op = ["aten::mm"] }

[[group]]
kind = "ep"
when = { group = "^9$" }

[[module]]
name = "vision"
when = { name = "^vit_" }
"""


def write(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


def test_packs_are_read_in_the_order_of_their_names(tmp_path):
    folder = tmp_path / "packs"
    shutil.copytree(PACKS, folder)
    pack = folder / "59-rest.toml"
    assert shipped_packs(folder) == shipped_packs()
    pack.write_text(pack.read_text(encoding="utf-8") + GOOD, encoding="utf-8")
    assert shipped_packs(folder)[pack.name].endswith(GOOD)
    (folder / "99-more.toml").write_text(GOOD, encoding="utf-8")
    assert list(shipped_packs(folder))[-1] == "99-more.toml"


def test_a_file_is_read(tmp_path):
    book = load_rules(write(tmp_path, GOOD))
    (rule,) = book.rules
    assert (rule.label, rule.passes, rule.module, rule.confidence, rule.pack) == (
        "tp_comm",
        "forward",
        "attention",
        0.5,
        "my",
    )
    assert rule.unless == {"op": ("aten::mm",)}
    assert [kind.value for kind in (*book.groups, *book.modules)] == ["ep", "vision"]


def test_a_users_rule_comes_first(tmp_path, program):
    hit = program.kernel("my_kernel", 1, bytes=4)
    program.op("aten::mm", 10, 20)
    missed = program.kernel("my_kernel", 11, bytes=4)
    large = program.kernel("my_kernel", 30, bytes=400)
    vision = program.kernel("vit_kernel", 40)
    labelled = classify(program.events(), rules=load_rules(write(tmp_path, GOOD))).sort("id")
    assert labelled.filter(pl.col("label") == "tp_comm")["id"].to_list() == [hit]
    assert set(labelled["id"]) == {hit, missed, large, vision}
    row = labelled.row(0, named=True)
    assert (row["rule"], row["pass"], row["module"]) == ("mine", "forward", "attention")
    assert labelled.filter(pl.col("id") == vision)["module"].to_list() == ["vision"]


def test_a_rule_of_the_same_name_replaces_the_built_in_one(program):
    program.kernel("x", 1)
    other = RuleBook((Rule("inference", label="recompute", when={"class": "compute"}),))
    labelled = classify(program.events(), rules=other)
    assert labelled["label"].to_list() == ["recompute"]
    assert sum(rule.name == "inference" for rule in other.before(builtin_rules()).rules) == 1


def test_a_users_group_is_known(program):
    program.nccl("all_gather", 1, group="9")
    book = RuleBook((), groups=load_groups())
    assert classify(program.events(), rules=book)["label"].to_list() == ["ep_dispatch"]


def load_groups():
    from tracekit.classify.rules import parse_rules

    return parse_rules(GOOD, "text", "text").groups


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[[rule]]\nname = 'a'\nlabel = \n", 3, "Invalid value"),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forwards'\nwhen = { name = 'x' }\n",
            3,
            "unknown label 'forwards'",
        ),
        ("\n\n[[rule]]\nlabel = 'forward'\nwhen = { name = 'x' }\n", 3, "rule: lacks the key name"),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { nam = 'x' }\n",
            4,
            "unknown evidence 'nam'",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\n\n[rule.when]\nname = '('\n",
            6,
            "not a regular expression",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { gemm = 'yes' }\n",
            4,
            "'gemm' is true or false",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { bytes = 'many' }\n",
            4,
            "'bytes' is a whole number",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { name = 3 }\n",
            4,
            "'name' is a regular expression",
        ),
        ("[[rule]]\nname = 'a'\nlabel = 'forward'\n", 1, "rule: lacks the key when"),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = 'x'\n",
            4,
            "rule: expected object, got str",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nconfidence = 2\nwhen = { name = 'x' }\n",
            4,
            "from 0 to 1",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\npass = 'up'\nwhen = { name = 'x' }\n",
            4,
            "unknown pass 'up'",
        ),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { name = 'x' }\nif = 1\n",
            5,
            "rule: unknown key if",
        ),
        ("[[rules]]\nname = 'a'\n", 1, "unknown key rules"),
        ("[rule]\nname = 'a'\n", 1, "rule: expected array, got object"),
        ("[[group]]\nkind = 'ep'\nwho = 'x'\n", 3, "group: unknown key who"),
        ("[[module]]\nwhen = { name = 'x' }\n", 1, "module: lacks the key name"),
        (
            "[[rule]]\nname = 'a'\nlabel = 'forward'\nwhen = { name = 'x' }\n"
            "[[rule]]\nname = 'b'\nlabel = 'nope'\nwhen = { name = 'x' }\n",
            7,
            "unknown label 'nope'",
        ),
    ],
)
def test_an_error_points_at_the_line(tmp_path, text, line, says):
    path = write(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        load_rules(path)
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert says in caught.value.message
    assert caught.value.hint


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(RuleError, match=r"none\.toml"):
        load_rules(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RuleError, match="not UTF-8"):
        load_rules(tmp_path / "bytes.toml")


def test_a_rule_from_python_is_checked():
    with pytest.raises(RuleError, match="unknown label"):
        Rule("x", label="nope", when={"name": "x"})
    with pytest.raises(RuleError, match="unknown evidence"):
        Rule("x", label="forward", when={"nope": "x"})


def test_built_in_rules_follow_their_tiers():
    tiers = [TIERS.index(rule.tier) for rule in builtin_rules().rules]
    assert tiers == sorted(tiers)


def test_every_column_and_tier_is_documented(request):
    text = (request.config.rootpath / "docs" / "rules.md").read_text()
    assert [name for name in TIERS if f"`{name}`" not in text] == []
    explained = [name for row in evidence_rows() for name in row["names"]]
    assert sorted(explained) == sorted(COLUMNS)


@pytest.mark.parametrize(
    "kinds",
    [[], ["cpu_op"], ["annotation"], ["kernel"], ["memcpy"], ["kernel", "cpu_op", "runtime"]],
)
def test_meagre_tables(kinds):
    rows = [
        {
            "rank": 0,
            "id": i,
            "kind": kind,
            "name": "x",
            "start_ns": i,
            "end_ns": i + 5,
            "pid": 1,
            "tid": 1,
        }
        for i, kind in enumerate(kinds)
    ]
    events = conform(pl.DataFrame(rows), EVENTS) if rows else EVENTS.to_frame()
    labelled = classify(events)
    assert labelled.schema == LABELLED
    assert len(labelled) == sum(kind in ("kernel", "memcpy") for kind in kinds)
    assert labelled["label"].null_count() == 0


@pytest.mark.parametrize(
    ("column", "condition", "problem"),
    [
        ("trained", True, None),
        ("trained", "yes", "'trained' is true or false"),
        ("bytes", ">= 7", None),
        ("bytes", 7, None),
        ("bytes", "many", "'bytes' is a whole number"),
        ("annotations", "forward", None),
        ("annotations", LinearPattern("for(ward"), "'annotations' is not a regular expression"),
        ("annotations", ["a", "b"], None),
        ("annotations", ("a", "b"), None),
        ("annotations", True, None),
        ("annotations", 7, "'annotations' is a regular expression"),
        ("notes", "a", "unknown evidence 'notes'"),
    ],
)
def test_a_condition_fits_its_evidence(column, condition, problem):
    found = condition_problem(column, condition)
    assert found is None if problem is None else found.startswith(problem)

"""The library's face: every public name exists, says what it does and shows it.

Results save, read back and draw.
"""

from __future__ import annotations

import doctest
import gc
import importlib
import inspect
import json
import pickle
import subprocess
import sys
import tomllib
import weakref
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from msgspec import structs

import tracekit
from tests.kept import analysis_of
from tracekit.errors import InputError, OptionError
from tracekit.report.sections.kernels import kernels
from tracekit.results.plots import PLOTS
from tracekit.results.write import WRITERS

pytestmark = pytest.mark.usefixtures("measured_once")

PUBLIC = (
    "tracekit",
    "tracekit.analysis",
    "tracekit.classify",
    "tracekit.diffs",
    "tracekit.doctor",
    "tracekit.late",
    "tracekit.memory",
    "tracekit.metrics",
    "tracekit.record",
    "tracekit.redact",
    "tracekit.results",
    "tracekit.pipeline.schedules",
    "tracekit.synthetic",
    "tracekit.roles.weight_updates",
)
"""Packages whose ``__all__`` is a promise (docs/compatibility.md)."""
NAMES = [(package, name) for package in PUBLIC for name in importlib.import_module(package).__all__]
NOT_CALLED = {"__version__", "Comparable", "EPOCH_NS", "PARTS"}
"""Values and types: nothing to call."""


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_is_documented_with_an_example(package, name):
    member = getattr(importlib.import_module(package), name)
    if name in NOT_CALLED:
        return
    text = inspect.getdoc(member) or ""
    assert text, f"{package}.{name} has no docstring"
    if inspect.isclass(member):  # an example of a method is one too
        own = [value for key, value in vars(member).items() if not key.startswith("_")]
        text += "".join(
            getattr(getattr(value, "fget", value), "__doc__", None) or "" for value in own
        )
    assert doctest.DocTestParser().get_examples(text), f"{package}.{name} shows no example"


@pytest.mark.parametrize("package", PUBLIC)
def test_nothing_public_is_left_out(package):
    """Whatever a package holds that is neither a module nor marked private is in its ``__all__``."""
    module = importlib.import_module(package)
    held = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", package).startswith(package)
    }
    held -= {"annotations", "TYPE_CHECKING"}
    assert held <= set(module.__all__)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))


def test_every_call_has_its_name_whatever_was_imported_before():
    """A room named as a call would take its place on the package once it is imported."""
    calls = [name for name in tracekit.__all__ if callable(getattr(tracekit, name))]
    rooms = (
        "late.run",
        "memory.run",
        "diffs.explanation",
        "diffs.run_gate",
        "redact.kineto",
        "doctor.diagnose",
        "run.query",
        "run.watch",
        "cli",
    )
    code = "; ".join(f"import tracekit.{room}" for room in rooms)
    check = f"import tracekit; assert all(callable(getattr(tracekit, n)) for n in {calls})"
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=True, timeout=120)


def test_completion_offers_every_public_name():
    assert set(dir(tracekit)) == set(tracekit.__all__)


def test_the_page_on_python_names_every_call():
    page = (Path(__file__).parents[1] / "docs/api.md").read_text()
    types_and_rooms = {"Analysis", "Notice", "Store", "__version__"}
    missing = [name for name in tracekit.__all__ if f"tracekit.{name}" not in page]
    assert set(missing) <= {*types_and_rooms, "Diagnosis", "Diff", "GateResult", "Trace"}


def test_classify_can_be_called_whatever_was_imported_before():
    check = "events = tracekit.load('sample_traces/reload', ranks=[0]).events; assert len(tracekit.classify(events))"
    for first in ("import tracekit.classify.rules", "from tracekit import classify"):
        code = f"{first}; import tracekit; {check}; import tracekit.classify.explain; {check}"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_deleted_analysis_is_freed(samples):
    analysis = tracekit.analyze(samples / "reload", ranks=[0], schedule="none")
    assert analysis.once(kernels) is analysis.once(kernels)
    freed = weakref.ref(analysis)
    del analysis
    gc.collect()  # what was computed of it may refer to it
    assert freed() is None


def test_an_analysis_is_pickled_without_what_was_computed_of_it(samples):
    analysis = analysis_of(samples / "reload")
    rows = analysis.once(kernels)
    copy = pickle.loads(pickle.dumps(analysis))
    assert copy.once(kernels) is not rows
    assert copy.once(kernels) == rows


def test_public_names_are_those_that_are_promised():
    promised = tomllib.loads(Path(__file__).with_name("public_names.toml").read_text("utf-8"))
    public = {
        package: [name for name in importlib.import_module(package).__all__ if name[0] != "_"]
        for package in PUBLIC
    }
    assert public == promised
    guide = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
    assert [package for package in PUBLIC if f"`{package}`" not in guide] == []


@pytest.fixture(scope="module")
def run(samples):
    return analysis_of(samples / "1f1b", what_if=True)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("api") / "run.json"
    run.save(file)
    return file


SAMPLES = ("1f1b", "reload", "nsys-1f1b", "overlapped", "steps/straggler")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_an_analysis_comes_back_from_its_json(samples, tmp_path, name):
    whole = analysis_of(samples / name)
    show = ["critical-path"] if name == "1f1b" else []
    file = tmp_path / "run.json"
    whole.save(file, show=show)
    back = tracekit.read_analysis(file)
    assert back.to_dict() == whole.to_dict(show=show)
    # What follows is computed again from the parts that were read, not copied from the file.
    for read, measured in zip(back.ranks, whole.ranks, strict=True):
        assert structs.replace(read, idle_host=()) == structs.replace(measured, idle_host=())
    assert back.total.budget == whole.total.budget
    assert back.step == whole.step
    # Below the first screen, which of a run as read names its schedule and its part of the GPU: its
    # sections are those of the run that need no events.
    sections = [set(_sections(shown)) for shown in (back, whole)]
    assert sections[0]
    assert sections[0] - {"What the host did instead", "Warnings"} <= sections[1]
    assert back.world_size == whole.world_size
    *notices, saved = back.notices
    assert (tuple(notices), saved.code) == (whole.to_document(show=show).warnings, "saved-analysis")
    assert back.findings == whole.findings
    assert back.tables["clocks"].to_dicts() == whole.clocks.table.to_dicts()


def _sections(shown):
    """Return the titles of the sections of what a notebook shows."""
    parts = shown._repr_html_().split("<details><summary>")[1:]
    return [part.partition("</summary>")[0] for part in parts]


@pytest.mark.slow
def test_the_schedule_comes_back(run, saved):
    back = tracekit.read_analysis(saved).schedule
    assert back == run.schedule
    held = run.comparison
    assert (back.name, back.pp, back.microbatches, back.virtual, back.exact) == (
        "1f1b",
        4,
        8,
        1,
        True,
    )
    assert back.measured.makespan_ns == held.head.measured_ns
    assert (back.ideal.makespan_ns, back.gap_ns) == (held.head.ideal_ns, held.gap_ns)
    assert tuple(back.what_if) == held.what_if
    assert back.ranks == held.head.orders()


@pytest.mark.slow
def test_results_are_frozen(run, saved):
    back = tracekit.read_analysis(saved)
    for thing in (run, back, back.document.schedule, run.ranks[0], run.total):
        with pytest.raises(AttributeError):
            thing.ranks = ()
    back.to_dict()["ranks"].clear()
    assert back.to_dict()["ranks"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not complete JSON"),
        ("[1]", "$: expected object, got array"),
        ('{"traceEvents": []}', "has no format, not tracekit.analysis/2"),
        (
            '{"format": "tracekit.diff/1"}',
            "its format is 'tracekit.diff/1', not tracekit.analysis/2",
        ),
        (
            '{"format": "tracekit.analysis/3"}',
            "its format is 'tracekit.analysis/3', not tracekit.analysis/2",
        ),
        (
            '{"format": "tracekit.analysis/1", "tracekit": "0.0.1"}',
            "$: lacks the key source (written by tracekit 0.0.1",
        ),
        ('{"format": "tracekit.analysis/1", "clocks": 3}', "$.clocks: expected object, got int"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        tracekit.read_analysis(file)
    assert message in str(error.value)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)
    assert error.value.hint


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        tracekit.read_analysis(tmp_path / "none.json")


@pytest.mark.slow
def test_a_key_of_a_later_version_is_skipped(saved, tmp_path):
    data = json.loads(saved.read_text())
    file = tmp_path / "later.json"
    file.write_text(json.dumps(data | {"weather": "fine"}))
    assert tracekit.read_analysis(file).to_dict() == data


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [*WRITERS, ".png", ".svg"])
def test_every_kind_of_file_is_saved_as_the_command_writes_it(run, tmp_path, suffix):
    run.save(tmp_path / f"run{suffix}")
    assert (tmp_path / f"run{suffix}").stat().st_size > 500


@pytest.mark.slow
def test_an_unknown_kind_of_file_is_refused(run, tmp_path):
    with pytest.raises(OptionError, match=r"cannot write \.docx"):
        run.save(tmp_path / "run.docx")


@pytest.mark.slow
def test_every_picture_is_a_method(run):
    from tracekit.results import Plots

    methods = {name for name in vars(Plots) if not name.startswith("_")}
    assert methods == set(PLOTS) - {"measured", "ideal"}
    assert repr(run.plot).startswith("<Plots: schedule, budget")
    for name in methods:
        assert isinstance(getattr(run.plot, name)(), Figure), name
        drawn = inspect.signature(PLOTS[name]).parameters
        given = inspect.signature(getattr(Plots, name)).parameters
        assert list(given)[1:] == list(drawn)[1:], f"{name}: other options than its picture has"
    titles = {
        show: run.plot.schedule(show=show).axes[0].get_title(loc="left")
        for show in ("measured", "ideal")
    }
    assert all(titles.values())


@pytest.mark.slow
def test_runs_are_compared_by_path_by_analysis_and_as_saved(run, saved, tmp_path):
    by_path = tracekit.diff(saved, str(saved))
    assert by_path.to_dict()["kernels"] == []
    mixed = tracekit.diff(tracekit.read_analysis(saved), run)
    assert mixed.to_dict()["labels"] == by_path.to_dict()["labels"]
    assert mixed.tables["metrics"].height == len(mixed.to_dict()["metrics"])
    assert "second run" in repr(mixed)
    assert "before: " in mixed._repr_html_()
    for suffix in (".json", ".md", ".html"):
        mixed.save(tmp_path / f"diff{suffix}")
    assert json.loads((tmp_path / "diff.json").read_text()) == json.loads(mixed.to_json())
    with pytest.raises(OptionError, match=r"cannot write \.pdf"):
        mixed.save(tmp_path / "diff.pdf")


@pytest.mark.slow
def test_the_gate_takes_the_same(run, saved, tmp_path):
    verdict = tracekit.gate(run, [tracekit.read_analysis(saved)], require=["makespan_ms < +3%"])
    assert verdict.verdict in ("pass", "inconclusive")
    assert f"{verdict.verdict}" in verdict._repr_html_()
    for suffix in (".json", ".md", ".xml"):
        verdict.save(tmp_path / f"gate{suffix}")
    assert json.loads((tmp_path / "gate.json").read_text())["verdict"] == verdict.verdict
    assert json.loads(verdict.to_json())["format"] == "tracekit.gate/1"
    # A limit needs no baseline.
    assert tracekit.gate(saved, require=["step_ms < 1000"]).verdict == "pass"
    assert tracekit.gate(saved, require=["step_ms < 1"]).verdict == "regressed"
    with pytest.raises(InputError, match="there is no candidate"):
        tracekit.gate([])
    with pytest.raises(OptionError, match="a number must follow"):
        tracekit.gate("nowhere", require=["step_ms << 3"])  # said before anything is read


def test_a_diagnosis_shows_itself(samples):
    diagnosis = tracekit.diagnose(samples / "1f1b-noshapes")
    assert "shapes" in diagnosis._repr_html_()
    assert json.loads(diagnosis.to_json()) == json.loads(json.dumps(diagnosis.to_dict()))


@pytest.mark.slow
def test_an_ideal_saves_and_draws_itself(tmp_path):
    done = tracekit.simulate(tracekit.pipeline.schedules.generate("1f1b", pp=2, microbatches=2))
    reload = tracekit.weight_reload(2, 1)
    for suffix in (".svg", ".json", ".html", ".trace.json"):
        done.save(tmp_path / f"ideal{suffix}")
        reload.save(str(tmp_path / f"reload{suffix}"))
    assert json.loads((tmp_path / "ideal.json").read_text())["makespan"] == done.makespan
    assert isinstance(done.plot(), Figure)
    with pytest.raises(OptionError):
        done.save(tmp_path / "ideal.docx")


def without_ranks(document):
    document["ranks"] = []


def with_a_rank_twice(document):
    document["ranks"].append(document["ranks"][0])


def of_another_rank(document):
    document["source"]["ranks"][0] += 90


def with_more_idle_time(document):
    document["ranks"][0]["budget_ns"]["idle"] += 1_000


@pytest.mark.parametrize(
    ("forge", "problem"),
    [
        (without_ranks, "holds no ranks"),
        (with_a_rank_twice, "its ranks are not those of its source"),
        (of_another_rank, "its ranks are not those of its source"),
        (with_more_idle_time, "$.ranks[0]: the parts of the time do not sum to it"),
    ],
)
def test_a_saved_analysis_that_contradicts_itself_is_refused(saved, tmp_path, forge, problem):
    document = json.loads(saved.read_text())
    forge(document)
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        tracekit.read_analysis(forged)
    assert error.value.message == f"{forged}: {problem}"


def test_a_saved_analysis_nested_too_deeply_is_refused(tmp_path):
    deep = tmp_path / "deep.json"
    deep.write_text('{"format": "tracekit.analysis/2", "source":' + "[" * 100_000)
    with pytest.raises(InputError, match="expected object, got array"):
        tracekit.read_analysis(deep)

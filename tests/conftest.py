"""Where the real captures are and how tests find them; a labelled table in a few words."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import polars as pl
import pytest
from hypothesis import settings

import tracekit
from tests.cputimes import CpuTimes
from tests.kept import SHARED, example_analysis_of, measuring_once
from tracekit import cli
from tracekit.schema import LABELLED, conform

# Commands that tests run start twice as fast where compiled modules may be kept; some machines
# forbid it by default.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is not a failure.
settings.register_profile("patient", deadline=None, max_examples=25)
settings.load_profile("patient")


PACKAGE = Path(tracekit.__file__).parent


class Examples:
    """Hooks for all tests; hooks of a conftest see those beside it alone."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path):
        """Look for examples only in modules that have some: looking takes longer than reading."""
        collectors = yield
        if file_path.suffix != ".py":
            return collectors
        if b">>> " not in file_path.read_bytes():
            return [found for found in collectors if type(found).__name__ != "DoctestModule"]
        if PACKAGE in file_path.parents:
            # Else pytest makes a second module of a file that its package has imported already, and
            # tests that replace a function would replace that of the copy.
            names = file_path.relative_to(PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(names).removesuffix(".__init__"))
        return collectors

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """Let examples in docstrings share analyses.

        That of ``analyze`` itself, which imports nothing, does not.
        """
        if not isinstance(item, pytest.DoctestItem):
            return (yield)
        with mock.patch.object(tracekit, "analyze", example_analysis_of), measuring_once():
            return (yield)


def pytest_addoption(parser):
    parser.addoption(
        "--cpu-times",
        metavar="FILE",
        help="write the processor time of each test, the dearest first",
    )


def pytest_configure(config):
    if file := config.getoption("--cpu-times"):
        config.pluginmanager.register(CpuTimes(file))
    config.pluginmanager.register(Examples())
    if not hasattr(config, "workerinput"):
        # xdist's workers inherit it.
        os.environ[SHARED] = tempfile.mkdtemp(prefix="tracekit-tests-")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Let one worker collect first.

    The others then find the test modules compiled, which takes longer than importing them.
    """
    if not hasattr(session.config, "workerinput"):
        return (yield)
    folder = Path(os.environ[SHARED])
    compiled = folder / "test-modules-compiled"
    with (folder / "collection.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not compiled.exists():
            result = yield
            compiled.touch()
            return result
    return (yield)


LONGEST_FILES = (
    "tests/pipeline/against_ideal/test_hard.py",
    "tests/pipeline/against_ideal/test_real.py",
    "tests/pipeline/against_ideal/test_round_trip.py",
    "tests/align/test_captures.py",
    "tests/align/test_perturbed.py",
    "tests/classify/test_real_answers.py",
    "tests/cli",
    "tests/diffs/gates/test_ci.py",
    "tests/documents/test_schemas.py",
    "tests/faults",
    "tests/fuzz",
    "tests/parsers/test_nsight_damage.py",
    "tests/report/test_archive.py",
    "tests/report/test_consistency.py",
    "tests/report/test_export.py",
    "tests/report/test_one_step_time.py",
    "tests/report/test_page_timeline.py",
    "tests/roles/test_recordings.py",
    "tests/run/test_watch.py",
    "tests/test_docs.py",
    "tests/run/test_fleet.py",
    "tests/test_mutations.py",
    "tests/test_notebooks.py",
    "tests/graph/test_schedule_rows.py",
)
"""Started first, so that no worker is left alone with one of them at the end."""


SLOW = (
    *LONGEST_FILES,
    "tests/pipeline/against_ideal/test_alike.py",
    "tests/pipeline/against_ideal/test_slowdowns.py",
    "tests/pipeline/against_ideal/test_spread.py",
    "tests/pipeline/against_ideal/test_zero_bubble.py::test_it_comes_back_whole",
    "tests/align/test_files.py",
    "tests/align/test_late_together.py",
    "tests/align/test_steps.py::test_report_and_gate_agree",
    "tests/analysis/test_checkpoint_on_one_rank.py",
    "tests/analysis/test_stragglers.py",
    "tests/analysis/test_table_checks.py",
    "tests/classify/test_bounds.py::test_a_rule_decides_up_to_its_bound",
    "tests/classify/test_graph_capture.py",
    "tests/classify/test_messages.py::test_an_overlapped_ring_sends_activations_ahead_and_gradients_back",
    "tests/classify/test_names.py::test_by_the_name_alone",
    "tests/classify/test_rules_covered.py::test_the_example_is_decided_by_its_rule",
    "tests/classify/test_threads.py::test_captures_without_their_operators_keep_their_passes",
    "tests/classify/test_undescribed_groups.py::test_communication_keeps_its_label_or_claims_less",
    "tests/diffs/gates/test_files.py",
    "tests/diffs/gates/test_hidden_changes.py",
    "tests/diffs/gates/test_reports.py",
    "tests/diffs/gates/test_roles.py",
    "tests/diffs/test_finding_changes.py",
    "tests/diffs/test_single_runs.py",
    "tests/diffs/test_story_sign.py",
    "tests/diffs/test_stats.py::test_only_comparisons_import_scipy",
    "tests/documents/test_old_files.py",
    "tests/findings/test_collect.py::test_a_run_without_steps",
    "tests/findings/test_collect.py::test_two_parts_of_the_hosts_time_are_saved_one_after_the_other",
    "tests/findings/test_communication.py",
    "tests/findings/test_host.py",
    "tests/findings/test_kernels.py",
    "tests/findings/test_ranks.py::test_the_slow_one_of_ranks",
    "tests/findings/test_ranks.py::test_the_slow_rank_of_a_recorded_run",
    "tests/findings/test_recording.py",
    "tests/findings/test_remedies.py",
    "tests/findings/test_steps.py",
    "tests/findings/test_synchronisations.py",
    "tests/metrics/test_causes.py",
    "tests/metrics/test_host_activity.py",
    "tests/metrics/test_measured_collectives.py",
    "tests/metrics/test_memory_replay.py::test_random_histories",
    "tests/metrics/test_rates.py::test_the_real_runs_flop",
    "tests/metrics/test_step_kinds.py",
    "tests/parsers/test_flight_recorder.py::test_damaged_dumps_are_refused_or_read",
    "tests/parsers/test_hostile_sizes.py",
    "tests/parsers/test_json_scanner.py::test_uncompiled_gives_the_same_table_and_says_so",
    "tests/parsers/test_kineto.py",
    "tests/parsers/test_kineto_broken.py",
    "tests/parsers/test_memory_snapshot.py::test_a_history_that_contradicts_itself_is_not_used",
    "tests/parsers/test_nsight_ops.py::test_any_text_is_taken_apart_as_the_patterns_say",
    "tests/parsers/test_perfetto.py",
    "tests/parsers/test_remote_listings.py",
    "tests/report/test_finding_words.py::test_a_verdict_is_shorter_than_60_000_characters_and_begins_with_the_verdict",
    "tests/report/test_first_screen.py",
    "tests/late/test_late_page.py",
    "tests/report/test_lateness.py",
    "tests/report/test_memory_page.py::test_the_pages_sums_are_those_that_the_snapshot_holds",
    "tests/report/test_notebook.py",
    "tests/report/test_notices.py::test_a_title_names_every_rank",
    "tests/report/test_notices.py::test_the_sentences_of_a_run",
    "tests/report/test_page_history.py",
    "tests/report/test_page_many.py",
    "tests/report/test_page_top.py",
    "tests/report/test_serving_words.py",
    "tests/memory/test_memory_command.py",
    "tests/pipeline/schedules/test_command.py",
    "tests/pipeline/schedules/test_large.py::test_every_op_starts_as_soon_as_its_inputs_are_there",
    "tests/skill/test_skill_folder.py::test_the_script_that_picks_keys",
    "tests/test_api.py",
    "tests/test_ci.py",
    "tests/util/test_columns.py",
    "tests/test_proof.py",
    "tests/store/test_store.py",
    "tests/synthetic/test_synthetic.py",
    "tests/report/test_terminal_schedule.py",
    "tests/roles/weight_updates/test_summary.py::test_one_json_has_one_ideal",
    "tests/truth/test_shipped_frameworks.py::test_linear_layers_have_the_labels_of_the_program",
    "tests/graph/test_changes.py::test_a_wait_followed_by_short_calls",
    "tests/graph/test_merged_events.py::test_a_sample_replays_alike",
    "tests/late/test_late.py",
    "tests/late/test_pipeline_order.py",
    "tracekit/diffs/stats.py",
    "tracekit/diffs/verdict.py::tracekit.diffs.verdict.judge",
)
"""Files whose tests take two seconds of processor time or more together, and tests that take 0.7 with all
their cases: left out by ``make quick``."""
SLOW_FILES = tuple(name for name in SLOW if "::" not in name)
NIGHTLY = tuple(
    line
    for line in (Path(__file__).parent / "nightly.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
"""Beginnings of the names of tests that are more cases of what another test shows."""


IN_BROWSER = "tests/report/test_page.py"
"""The file whose tests in a browser are run every time: each worker that runs one starts it."""


def pytest_ignore_collect(collection_path, config):
    """Leave files alone of which ``-m "not slow"`` runs nothing: collecting them takes as long as the rest."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    if "not slow" in config.option.markexpr and path.startswith(SLOW_FILES):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        in_browser = "browser" in getattr(item, "fixturenames", ())
        if item.nodeid.startswith(NIGHTLY) or (
            in_browser and not item.nodeid.startswith(IN_BROWSER)
        ):
            item.add_marker(pytest.mark.nightly)
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.DoctestItem) and "sample_traces" in item.dtest.docstring:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_FILES))


def pytest_collection_finish():
    """Keep the garbage collector from walking through modules and tests, which all live until the end.

    It runs more seldom, too: analyses leave few circles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure(config):
    gc.unfreeze()  # else libraries report at exit that their objects are still there
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True)


SAMPLES = Path(__file__).parent.parent / "sample_traces"


@pytest.fixture(scope="session")
def snapshots():
    """Memory snapshots with what the allocator counted while they were recorded.

    Some with traces.
    """
    return Path(__file__).parent / "data/memory"


@pytest.fixture(scope="session")
def samples():
    """The captures that ship with the repository."""
    return SAMPLES


@pytest.fixture(scope="module")
def measured_once():
    """Let a module's tests share what was measured of equal traces.

    For tests of what is done with ranks that were measured: how runs are found, combined, shown
    and compared. A test of measuring itself does without.
    """
    with measuring_once():
        yield


@pytest.fixture(scope="session")
def corpus():
    """Other people's traces: never committed, found through TRACEKIT_CORPUS."""
    root = os.environ.get("TRACEKIT_CORPUS")
    if not root:
        pytest.skip("TRACEKIT_CORPUS is not set: the public traces are not in this repository")
    return Path(root) / "public"


@pytest.fixture(scope="session")
def labelled():
    """Build a labelled table from rows (label, start, end) or dicts; times in ns."""

    def build(*rows, **common):
        dicts = [
            row
            if isinstance(row, dict)
            else dict(zip(("label", "start_ns", "end_ns"), row, strict=True))
            for row in rows
        ]
        full = [
            {"rank": 0, "kind": "kernel", "name": "k", "launch_ns": r["start_ns"], **common, **r}
            for r in dicts
        ]
        return conform(pl.DataFrame(full, infer_schema_length=None), LABELLED)

    return build


@pytest.fixture
def run_command(monkeypatch, capfd):
    """Type words at the command line of this process: what a process of its own would print and exit with, sooner."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, words)])
        # Else `python -m pytest` is the program.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
        capfd.readouterr()
        # A command may set variables.
        with (
            mock.patch.dict(os.environ),
            pytest.raises(SystemExit) as ending,
        ):
            cli.main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, ending.value.code, out, err)

    return run

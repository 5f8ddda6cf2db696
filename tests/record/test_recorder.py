"""The recorder around a stand-in for PyTorch: what it switches on, when, and what training notices of a failure."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import shutil
import sys
import types
from pathlib import Path
from typing import ClassVar

import pytest

import tracekit
from tracekit.errors import OptionError
from tracekit.record import handler, lightning_callback, profiler, transformers_callback
from tracekit.record.answer import answer_of, gather_tables
from tracekit.record.recorder import WARM_UP_STEPS, running_recorders

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[2] / "sample_traces"


class FakeProfile:
    """Counts what it is asked for, as torch.profiler.profile would be."""

    made: ClassVar[list[FakeProfile]] = []

    def __init__(self, *, activities, schedule, on_trace_ready, **options):
        self.activities, self.options, self.when, self.ready = (
            activities,
            options,
            schedule,
            on_trace_ready,
        )
        self.steps, self.metadata = 0, {}
        self.running = False
        FakeProfile.made.append(self)

    def start(self):
        self.running = True

    def step(self):
        self.steps += 1

    def stop(self):
        self.running = False
        self.ready(self)

    def add_metadata_json(self, key, value):
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, path):
        shutil.copy(SAMPLES / "steps" / "a" / "rank0.pt.trace.json.gz", path)


@pytest.fixture
def torch(monkeypatch):
    FakeProfile.made = []
    fake = types.ModuleType("torch")
    fake.cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
    fake.distributed = types.SimpleNamespace(is_available=lambda: False)
    fake.profiler = types.SimpleNamespace(
        ProfilerActivity=types.SimpleNamespace(CPU="cpu", CUDA="cuda"),
        schedule=lambda **asked: lambda step: (asked, step),
        profile=FakeProfile,
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    yield fake
    running_recorders.clear()


def test_only_the_asked_steps_are_recorded(torch, tmp_path):
    with profiler(tmp_path / "t", steps=(3, 2), answer=False) as recorder:
        begun = []
        for _ in range(8):
            begun.append(len(FakeProfile.made))
            recorder.step()
    [made] = FakeProfile.made
    assert begun == [0, 0, 1, 1, 1, 1, 1, 1]  # from the step before the first: its warm-up
    assert made.when(made.step_num) == (
        {"wait": 0, "warmup": WARM_UP_STEPS, "active": 2, "repeat": 1},
        0,
    )
    assert made.step_num == 3 - WARM_UP_STEPS  # the trace numbers its steps as the training does
    assert (made.steps, made.running) == (WARM_UP_STEPS + 2, False)
    assert made.options == {"record_shapes": True, "with_stack": False, "profile_memory": False}
    assert (tmp_path / "t" / "rank0.pt.trace.json.gz").exists()
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["rank0.pt.trace.json.gz"]


def test_the_readmes_training_loop_records_the_steps_it_names(torch, tmp_path, monkeypatch, capfd):
    readme = (SAMPLES.parent / "README.md").read_text(encoding="utf-8")
    (loop,) = re.findall(r"```py\n(.*?)```", readme, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    trained = []
    names = {"tracekit": tracekit, "loader": range(15), "train": trained.append}
    exec(loop, names)
    names["recorder"].wait()  # for the answer, which another process prints
    assert trained == list(range(15))
    [made] = FakeProfile.made
    assert made.step_num == 10 - WARM_UP_STEPS
    assert made.steps == WARM_UP_STEPS + 5  # steps 10 to 14
    assert (tmp_path / "traces/rank0.pt.trace.json.gz").exists()
    log = capfd.readouterr().err
    assert re.search(r"^tracekit: .+ a step", log, re.MULTILINE)
    assert "Warning" not in log


def test_recording_from_the_first_step_has_no_warm_up_to_give(torch, tmp_path):
    with profiler(tmp_path / "t", steps=(0, 1), answer=False) as recorder:
        recorder.step()
    assert FakeProfile.made[0].when(0)[0]["warmup"] == 0
    assert FakeProfile.made[0].steps == 1


def test_the_trace_says_how_long_a_step_takes_without_the_profiler(torch, tmp_path, monkeypatch):
    """The host takes 1 s a step, the GPU 2 s: it is done when the host has waited for it."""
    clock = [0.0]
    gpu_done = [0.0]

    def synchronize():
        clock[0] = max(clock[0], gpu_done[0])

    torch.cuda.synchronize = synchronize
    monkeypatch.setattr("tracekit.record.recorder.time.perf_counter", lambda: clock[0])
    with profiler(tmp_path / "t", steps=(7, 2), answer=False) as recorder:
        for step in range(9):
            clock[0] += {0: 9.0}.get(step, 1.0)  # the first step of a training is slow
            gpu_done[0] = max(clock[0], gpu_done[0]) + 2.0
            recorder.step()
    # Steps 3, 4 and 5: the host's 1 s before the GPU begins, and 3 × 2 s.
    assert FakeProfile.made[0].metadata == {"tracekit": {"free_step_ns": round(7 / 3 * 1e9)}}


def test_with_too_few_steps_before_it_the_free_step_is_not_known(torch, tmp_path):
    with profiler(tmp_path / "t", steps=(6, 1), answer=False) as recorder:
        for _ in range(8):
            recorder.step()
    assert FakeProfile.made[0].metadata == {}


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (0, "recorded nothing: recorder.step() was never called; call it after each training step"),
        (4, "recorded nothing: the loop ended after 4 steps, before step 6 was done"),
        (6, "recorded nothing: the loop ended after 6 steps, before step 6 was done"),
        (7, "recorded 1 of 2 steps: the loop ended first"),
        (8, "recorded 2 steps in"),
        (20, "recorded 2 steps in"),
    ],
)
def test_what_was_recorded_is_said_once_also_if_it_is_less_than_asked_for(
    torch, tmp_path, capsys, calls, said
):
    with profiler(tmp_path / "t", steps=(6, 2), answer=False) as recorder:
        for _ in range(calls):
            recorder.step()
    log = capsys.readouterr().err.splitlines()
    lines = [line for line in log if line.startswith("tracekit: recorded")]
    assert len(lines) == 1
    assert lines[0].startswith(f"tracekit: {said}")


@pytest.mark.parametrize("steps", [10, "ab", (1,), (1, 2, 3), (1.5, 2), (True, 2), (-1, 2), (3, 0)])
def test_steps_that_are_no_first_step_and_count_are_one_line(tmp_path, steps):
    with pytest.raises(OptionError, match="give the first step and how many"):
        profiler(tmp_path / "t", steps=steps, rank=0, world_size=1)


def test_an_exception_in_training_still_leaves_a_file(torch, tmp_path):
    def train():
        with profiler(tmp_path / "t", steps=(0, 5), answer=False) as recorder:
            recorder.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert tracekit.load(tmp_path / "t").ranks == (0,)


def test_a_full_disk_is_one_line_and_training_goes_on(torch, tmp_path, monkeypatch, capsys):
    def full(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeProfile, "export_chrome_trace", full)
    with profiler(tmp_path / "t", steps=(0, 1), answer=False) as recorder:
        recorder.step()
        recorder.step()
    assert "tracekit: the trace could not be written" in capsys.readouterr().err
    assert list((tmp_path / "t").iterdir()) == []


def test_a_trace_that_is_too_large_is_thrown_away_with_a_word(torch, tmp_path, capsys):
    with profiler(tmp_path / "t", steps=(0, 1), answer=False, most_mb=0) as recorder:
        recorder.step()
    assert "record fewer steps" in capsys.readouterr().err
    assert list((tmp_path / "t").iterdir()) == []


@pytest.fixture
def analysed_here(monkeypatch):
    """Analyse in this process: one of the lowest priority waits for whatever else a busy machine runs."""

    def answer(files):
        return answer_of(tracekit.analyze(files, timeline=False, workers=1))

    # The package has a function of the module's name.
    module = importlib.import_module("tracekit.record.handler")
    monkeypatch.setattr(module, "analyse_apart", answer)


@pytest.mark.usefixtures("analysed_here")
def test_rank_0_prints_the_answer_and_logs_figures(torch, tmp_path, capsys):
    logged = []
    ready = handler(
        tmp_path / "t", rank=0, world_size=2, log=logged.append, background=False, wait_s=0.0
    )
    (tmp_path / "t").mkdir()
    shutil.copy(
        SAMPLES / "steps" / "a" / "rank1.pt.trace.json.gz",
        tmp_path / "t" / "rank1.pt.trace.json.gz",
    )
    ready(FakeProfile(activities=[], schedule=None, on_trace_ready=None))
    log = capsys.readouterr().err
    assert log.startswith("tracekit: [rank 0] wrote ")
    assert re.search(r"^tracekit: .+ a step", log, re.MULTILINE)
    assert logged[0]["tracekit/step_ms"] > 0


def test_the_answer_is_computed_in_another_process_at_low_priority(
    torch, tmp_path, monkeypatch, capsys
):
    report = tmp_path / "process"
    code = (
        f"import os; os.nice = lambda n: open({str(report)!r}, 'w').write(f'{{os.getpid()}} {{n}}')"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    ready = handler(tmp_path / "t", rank=0, world_size=1)
    ready(FakeProfile(activities=[], schedule=None, on_trace_ready=None))
    ready.wait(60)
    assert "A step takes" in capsys.readouterr().err
    process, niceness = map(int, report.read_text().split())
    assert process != os.getpid()
    assert niceness == 19


def test_a_failed_analysis_is_one_line(torch, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        FakeProfile, "export_chrome_trace", lambda self, path: Path(path).write_bytes(b"{}")
    )
    ready = handler(tmp_path / "t", rank=0, world_size=1, background=False)
    ready(FakeProfile(activities=[], schedule=None, on_trace_ready=None))
    lines = [line for line in capsys.readouterr().err.splitlines() if "no answer" in line]
    assert len(lines) == 1
    assert "Traceback" not in lines[0]


@pytest.mark.usefixtures("analysed_here")
def test_a_rank_that_never_comes_is_named(torch, tmp_path, capsys):
    ready = handler(tmp_path / "t", rank=0, world_size=3, background=False, wait_s=0.0)
    ready(FakeProfile(activities=[], schedule=None, on_trace_ready=None))
    assert "2 ranks of 3 wrote no trace" in capsys.readouterr().err


def test_tables_are_gathered_on_the_first_rank(torch):
    # One process alone.
    sent = {2: pickle.dumps(gather_tables(SAMPLES / "reload" / "rank2.pt.trace.json.gz")[0])}

    def gather_object(own, gathered, dst):
        if gathered is not None:
            gathered[:] = [
                own,
                *(pickle.loads(sent[rank]) if rank in sent else None for rank in (1, 2)),
            ]

    rank = 0
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: 3,
        gather_object=gather_object,
    )
    tables = gather_tables(SAMPLES / "reload" / "rank0.pt.trace.json.gz")
    assert [table.source.rank for table in tables] == [0, 2]
    rank = 1
    assert gather_tables(None) == []


def test_without_a_gpu_it_says_so(torch, tmp_path, capsys):
    torch.cuda.is_available = lambda: False
    with profiler(tmp_path / "t", steps=(0, 1), answer=False) as recorder:
        recorder.step()
    assert "no GPU is visible" in capsys.readouterr().err
    assert FakeProfile.made[0].activities == ["cpu"]


def test_two_recorders_at_once_are_refused(torch, tmp_path):
    with profiler(tmp_path / "a", answer=False), pytest.raises(OptionError, match="already"):  # noqa: SIM117
        with profiler(tmp_path / "b", answer=False):
            pass


def test_a_folder_of_another_run_is_refused(torch, tmp_path):
    shutil.copy(
        SAMPLES / "steps" / "a" / "rank0.pt.trace.json.gz", tmp_path / "rank0.pt.trace.json.gz"
    )
    with pytest.raises(OptionError, match="name a new folder"):
        profiler(tmp_path)


def test_without_pytorch_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match="needs PyTorch"):
        profiler(tmp_path)


@pytest.mark.parametrize("steps", [(-1, 2), (0, 0)])
def test_steps_that_record_nothing_are_refused(tmp_path, steps):
    with pytest.raises(OptionError, match="nothing to record"):
        profiler(tmp_path, steps=steps, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("make", "base", "events"),
    [
        (
            transformers_callback,
            "transformers:TrainerCallback",
            ("on_train_begin", "on_step_end", "on_train_end"),
        ),
        (
            lightning_callback,
            "lightning.pytorch:Callback",
            ("on_train_start", "on_train_batch_end", "on_train_end"),
        ),
    ],
)
@pytest.mark.usefixtures("torch")
def test_callbacks_step_with_their_trainer(tmp_path, monkeypatch, make, base, events):
    module, _, base = base.partition(":")
    fake = types.ModuleType(module)
    setattr(fake, base, object)
    for name in (module.split(".", maxsplit=1)[0], module):
        monkeypatch.setitem(sys.modules, name, fake)
    callback = make(tmp_path / "t", steps=(1, 1), answer=False)
    getattr(callback, events[0])()
    for _ in range(4):
        getattr(callback, events[1])()
    getattr(callback, events[2])()
    assert [made.steps for made in FakeProfile.made] == [2]
    assert (tmp_path / "t" / "rank0.pt.trace.json.gz").exists()


@pytest.mark.parametrize(
    ("make", "package"),
    [(transformers_callback, "transformers"), (lightning_callback, "lightning")],
)
def test_a_callback_without_its_trainer_says_so(monkeypatch, tmp_path, make, package):
    for name in ("transformers", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=f"needs {package}"):
        make(tmp_path)


class Group:
    def __init__(self, description="undefined"):
        self.group_desc = description

    def _set_group_desc(self, text):
        self.group_desc = text


def test_groups_without_a_description_get_the_name_they_are_given(torch, tmp_path):
    nameless, named = Group(), Group("DATA_PARALLEL_GROUP")
    profiler(tmp_path, groups={"pp": nameless, "dp": named, "ep": None})
    assert (nameless.group_desc, named.group_desc) == ("pp", "DATA_PARALLEL_GROUP")


def test_what_is_no_group_is_refused_by_name(torch, tmp_path):
    with pytest.raises(OptionError, match=r"'dp'.*list, which cannot be described"):
        profiler(tmp_path, groups={"dp": [0, 1]})

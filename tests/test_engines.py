"""Engines that docs/fleet.md shows: its own code, run in each engine's local mode, gives the answer of one process.

Each is skipped where its package is not installed (`pip install --group engines`); CI has a job
that installs them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tracekit.pipeline.schedules import generate
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest
from tracekit.synthetic import Recipe, write_run

PAGE = (Path(__file__).parent.parent / "docs" / "fleet.md").read_text(encoding="utf-8")
LOCAL_CLUSTER = {
    "SLURMCluster": "LocalCluster",
    "dask_jobqueue import": "dask_jobqueue.local import",
}
"""What turns dask-jobqueue's example into its local mode: the same job scripts, run by a shell."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the engines' own


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "traces"
    write_run(Recipe(generate("1f1b", pp=2, microbatches=2), layers=1), folder)
    return folder


@pytest.fixture(scope="module")
def answer(traces):
    return analyze(traces, workers=1).to_dict()["ranks"]


def example(word):
    """Return the Python block of the page that imports *word*."""
    return next(
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        if f"import {word}" in block
    )


def names_of(word):
    space = {}
    exec(compile(example(word), "docs/fleet.md", "exec"), space)
    return space


def test_submitit(traces, answer, tmp_path):
    pytest.importorskip("submitit")
    executor = names_of("submitit")["Submitit"](
        tmp_path / "jobs", cluster="local", poll_s=0.1, timeout_min=5
    )
    ingest(traces, tmp_path / "store", executor=executor, workers=2)
    assert analyze(tmp_path / "store").to_dict()["ranks"] == answer


def test_ray(traces, answer, tmp_path):
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings(action="ignore"):
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            ingest(
                traces, tmp_path / "store", executor=names_of("ray")["Ray"](num_cpus=1), workers=2
            )
        finally:
            ray.shutdown()
    assert analyze(tmp_path / "store").to_dict()["ranks"] == answer


def test_dask_jobqueue(traces, answer, tmp_path):
    pytest.importorskip("dask_jobqueue")
    text = example("SLURMCluster").replace("/scratch/run.store", str(tmp_path / "store"))
    text = text.replace("/scratch/run", str(traces)).replace(
        "cores=8, processes=8", "cores=1, processes=1"
    )
    for ours, local in LOCAL_CLUSTER.items():
        text = text.replace(ours, local)
    text = text.replace("jobs=4", "jobs=1").replace(
        'memory="64GB", walltime="01:00:00"', 'memory="2GB"'
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"if __name__ == '__main__':\n    {text.replace(chr(10), chr(10) + '    ')}\n",
        encoding="utf-8",
    )
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, timeout=120, check=True)
    assert analyze(tmp_path / "store").to_dict()["ranks"] == answer


def test_mpi(traces, answer, tmp_path):
    pytest.importorskip("mpi4py")
    script = tmp_path / "script.py"
    text = example("MPIPoolExecutor").replace("/scratch/run.store", str(tmp_path / "store"))
    script.write_text(text.replace("/scratch/run", str(traces)), encoding="utf-8")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [
        str(mpiexec) if mpiexec.exists() else "mpiexec",
        "-n",
        "3",
        sys.executable,
        "-m",
        "mpi4py.futures",
    ]
    subprocess.run([*command, str(script)], timeout=120, check=True)
    assert analyze(tmp_path / "store").to_dict()["ranks"] == answer

"""A report is exported by the nsys that the user names."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(*words):
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_named_exporter_is_used(samples, tmp_path):
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    fake = tmp_path / "bin" / "my-nsys"
    fake.parent.mkdir()
    source = samples / "nsys-1f1b" / "rank0.sqlite"
    fake.write_text(
        f'#!/bin/sh\nfor word in "$@"; do case $word in --output=*) cp "{source}" "${{word#--output=}}";; esac; done\n'
    )
    fake.chmod(0o755)
    done = run("doctor", report, "--nsys", fake, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"]


def test_without_one_the_command_to_type_is_shown(tmp_path):
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    done = run("doctor", report, "--nsys", tmp_path / "no-such-program")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr

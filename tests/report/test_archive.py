"""Archives for Perfetto: the ranks' own files, a manifest with tracekit's clock offsets, and tracks of the results."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import jsonschema
import pytest

from tests.pftrace import write_pftrace
from tests.reference import load_json
from tests.stores import seal
from tracekit import analyze, ingest
from tracekit.documents.store_manifest import StoreEntry
from tracekit.errors import InputError, OptionError
from tracekit.parsers.file_type import detect_file_type
from tracekit.parsers.source_refs import SourceRef
from tracekit.pipeline.schedules import generate
from tracekit.report.perfetto.archive import describe_rank_file, name_apart
from tracekit.run.export import export
from tracekit.schema import Source
from tracekit.store.files import MANIFEST
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.usefixtures("measured_once")

CHECK = Path(__file__).with_name("check_archive.py")
SKEW_NS = {1: 5_000_000, 2: -3_000_000}

TEXT = {"type": "string", "minLength": 1}
CLOCK = {
    "enum": [
        "REALTIME",
        "REALTIME_COARSE",
        "MONOTONIC",
        "MONOTONIC_COARSE",
        "MONOTONIC_RAW",
        "BOOTTIME",
    ]
}
SCHEMA = {  # https://perfetto.dev/docs/reference/perfetto-manifest, without what tracekit has no use for
    "type": "object",
    "required": ["perfetto_manifest"],
    "additionalProperties": False,
    "properties": {
        "perfetto_manifest": {
            "type": "object",
            "required": ["version"],
            "additionalProperties": False,
            "properties": {
                "version": {"const": 1},
                "attributes": {
                    "type": "object",
                    "additionalProperties": {"type": ["string", "integer"]},
                },
                "files": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["path"],
                        "additionalProperties": False,
                        "properties": {
                            "path": TEXT,
                            "machine": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": TEXT},
                            },
                            "clocks": {
                                "type": "object",
                                "required": ["sync_to"],
                                "additionalProperties": False,
                                "properties": {
                                    "clock": CLOCK,
                                    "offset_ns": {"type": "integer"},
                                    "sync_to": {
                                        "type": "object",
                                        "required": ["file"],
                                        "additionalProperties": False,
                                        "properties": {"file": TEXT, "clock": CLOCK},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        }
    },
}


def manifest_of(archive):
    with tarfile.open(archive) as tar:
        return json.load(tar.extractfile("perfetto_manifest.json"))["perfetto_manifest"]


def offsets_of(archive):
    return {
        file["path"]: file["clocks"]["offset_ns"] if "clocks" in file else 0
        for file in manifest_of(archive)["files"]
        if file["path"] != "tracekit.json"
    }


def checked(archive, sources):
    done = subprocess.run(
        [sys.executable, CHECK, archive, *sources],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECK.parents[2],
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """A run of three ranks whose clocks differ."""
    folder = tmp_path_factory.mktemp("skewed")
    write_run(Recipe(generate("1f1b", pp=3, microbatches=4), layers=1, skew_ns=SKEW_NS), folder)
    return folder


@pytest.fixture(scope="module")
def archive(skewed, tmp_path_factory):
    """The archive of that run."""
    target = tmp_path_factory.mktemp("archive") / "run.tar"
    export(skewed, target, workers=1)
    return target


@pytest.fixture(scope="module")
def packets(skewed, tmp_path_factory):
    """The same run as Perfetto traces."""
    folder = tmp_path_factory.mktemp("packets")
    for path in skewed.glob("*.gz"):
        write_pftrace(path, folder / f"{path.name.partition('.')[0]}.pftrace")
    return folder


@pytest.mark.parametrize("format_", ["json", "packets"])
def test_offsets_are_those_that_analyze_reports(skewed, packets, tmp_path, format_):
    folder = packets if format_ == "packets" else skewed
    export(folder, tmp_path / "run.tar", workers=1)
    offsets = list(offsets_of(tmp_path / "run.tar").values())
    clocks = {
        clock["rank"]: clock["offset_ns"]
        for clock in analyze(folder, workers=1).to_dict()["clocks"]["ranks"]
    }
    assert abs(clocks[1] - SKEW_NS[1]) < 1_000_000
    # A clock that is ahead shows later times: moving its file earlier puts it right.
    assert offsets == [clocks[0] - clocks[rank] for rank in sorted(clocks)]


def test_files_whose_times_count_from_different_starts_are_put_right(skewed, archive, tmp_path):
    folder = tmp_path / "moved"
    folder.mkdir()
    move_ns = {0: 0, 1: 7_000_000_000, 2: -11_000}
    for path in sorted(skewed.glob("*.gz")):
        raw = json.loads(gzip.decompress(path.read_bytes()))
        rank = raw["distributedInfo"]["rank"]
        raw["baseTimeNanoseconds"] += move_ns[rank]
        for event in raw["traceEvents"]:
            if "ts" in event:
                event["ts"] = round(event["ts"] - move_ns[rank] / 1000, 3)
        (folder / f"rank{rank}.json").write_text(json.dumps(raw))
    export(folder, tmp_path / "run.tar", workers=1)
    for (path, offset), before in zip(
        offsets_of(tmp_path / "run.tar").items(), offsets_of(archive).values(), strict=True
    ):
        assert offset == before + move_ns[int(path[4])]


@pytest.mark.slow
def test_an_archive_of_all_ranks_holds_packet_by_packet_without_tracekit(samples, tmp_path):
    sources = sorted((samples / "steps/straggler").glob("*.gz"))
    done = export(sources, tmp_path / "run.tar", workers=1)
    contents = checked(tmp_path / "run.tar", sources)
    assert len(contents["packets"]) == 2
    assert min(contents["packets"].values()) > 1_000
    assert done.cells > 0
    assert contents["tracks"]["cell_measured"] + contents["tracks"]["cell_ideal"] == done.cells
    assert contents["tracks"]["label"] > 0
    assert contents["tracks"]["finding"] > 0


def test_an_archive_of_ranks_with_other_clocks_holds_without_tracekit(skewed, archive):
    contents = checked(archive, sorted(skewed.glob("*.gz")))
    assert contents["tracks"]["cell_measured"] == 3 * 4 * 2


def test_an_archive_of_packets_holds_without_tracekit(packets, tmp_path):
    export(packets, tmp_path / "run.tar", workers=1)
    contents = checked(tmp_path / "run.tar", sorted(packets.glob("*.pftrace")))
    assert contents["tracks"]["cell_measured"] == 3 * 4 * 2


def test_the_manifest_follows_its_documentation(archive):
    with tarfile.open(archive) as tar:
        raw = tar.extractfile("perfetto_manifest.json").read()
        names = tar.getnames()
    document = json.loads(raw)
    jsonschema.validate(document, SCHEMA)
    assert raw.split()[1].startswith(b'"perfetto_manifest"')
    assert [file["path"] for file in document["perfetto_manifest"]["files"]] == names[1:]
    assert document["perfetto_manifest"]["attributes"]["tracekit.schedule"] == "1f1b"


def test_the_same_run_gives_the_same_bytes(skewed, archive, tmp_path):
    export(skewed, tmp_path / "again.tar", workers=1)
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


def test_chosen_ranks_alone_are_written(skewed, archive, tmp_path):
    done = export(skewed, tmp_path / "two.tar", ranks=[1, 2], workers=1)
    assert done.ranks == (1, 2)
    offsets = offsets_of(archive)
    assert offsets_of(done.path) == {
        "rank1.json": 0,
        "rank2.json": offsets["rank2.json"] - offsets["rank1.json"],
    }


def test_ranks_that_are_not_there_are_an_error(skewed, tmp_path):
    with pytest.raises(InputError, match="no rank 7"):
        export(skewed, tmp_path / "run.tar", ranks=[0, 7], workers=1)
    assert not (tmp_path / "run.tar").exists()


def forged_store(traces, path, *, origin):
    """Write a store of *traces* whose first rank names *origin* as its source, sealed again."""
    store = ingest(traces, path, workers=1)
    manifest = json.loads((store.path / MANIFEST).read_text())
    manifest["ranks"][0]["source"]["path"] = str(origin)
    (store.path / MANIFEST).write_text(json.dumps(manifest))
    seal(store.path)
    return store.path


@pytest.mark.parametrize("origin", ["secret.json", "http://127.0.0.1:{port}/rank0.json"])
def test_a_path_that_a_store_mentions_is_not_opened(skewed, tmp_path, origin):
    (tmp_path / "secret.json").write_text('{"password": "hunter2"}')
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        listening.setblocking(False)
        port = listening.getsockname()[1]
        store = forged_store(skewed, tmp_path / "store", origin=origin.format(port=port))
        for paths in (store, [store], [store, sorted(skewed.glob("*.gz"))[0]]):
            with pytest.raises(OptionError, match="a store has none"):
                export(paths, tmp_path / "run.tar", workers=1)
        with pytest.raises(BlockingIOError):
            listening.accept()  # nobody has asked
    assert not (tmp_path / "run.tar").exists()
    export(store, tmp_path / "run.json.gz", workers=1)  # from the store's own tables alone


def test_a_trace_that_changes_while_it_is_exported_is_an_error(skewed, tmp_path, monkeypatch):
    shutil.copytree(skewed, tmp_path / "traces")
    first = sorted((tmp_path / "traces").glob("*.gz"))[0]

    def analyze_and_replace(*paths, **options):
        first.write_bytes(first.read_bytes() + b"more")
        return analyze(*paths, **options)

    monkeypatch.setattr("tracekit.run.export.analyze", analyze_and_replace)
    with pytest.raises(InputError, match="changed while it was exported"):
        export(tmp_path / "traces", tmp_path / "run.tar", workers=1)
    assert not (tmp_path / "run.tar").exists()


def test_a_run_that_lacks_ranks_is_written_with_those_that_are_there(skewed, tmp_path):
    shutil.copytree(skewed, tmp_path / "traces")
    sorted((tmp_path / "traces").glob("*.gz"))[1].unlink()
    done = export(tmp_path / "traces", tmp_path / "run.tar", workers=1)
    assert list(offsets_of(done.path)) == ["rank0.json", "rank2.json"]
    assert "missing-ranks" in [notice.code for notice in done.notices]


@pytest.mark.slow
def test_reports_of_nsight_systems_are_refused(samples, tmp_path):
    with pytest.raises(OptionError, match="Perfetto reads none of Nsight Systems"):
        export(samples / "nsys-1f1b/rank0.sqlite", tmp_path / "run.tar", workers=1)


@pytest.mark.slow
def test_files_of_several_processes_per_rank_have_names_of_their_own(samples, tmp_path):
    sources = sorted((samples / "checkpoint-engine").glob("*[01].pt.trace.json.gz"))
    export(sources, tmp_path / "run.tar", workers=1)
    paths = [file["path"] for file in manifest_of(tmp_path / "run.tar")["files"]]
    machines = [file["machine"]["name"] for file in manifest_of(tmp_path / "run.tar")["files"]]
    assert len(set(paths)) == len(paths) == len(set(machines)) > 3


def test_an_archive_is_not_read_as_a_trace(skewed, archive, tmp_path):
    why = detect_file_type(archive.read_bytes()).why
    assert why == "is an archive; unpack it and name the folder"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    again = analyze(tmp_path / "unpacked", workers=1)
    assert again.clocks.offset_ns == analyze(skewed, workers=1).clocks.offset_ns


def test_members_are_the_files_of_the_ranks_without_gzip(skewed, archive):
    with tarfile.open(archive) as tar:
        for rank, path in enumerate(sorted(skewed.glob("*.gz"))):
            assert tar.extractfile(f"rank{rank}.json").read() == gzip.decompress(path.read_bytes())
            assert load_json(path)["distributedInfo"]["rank"] == rank


def test_roles_that_differ_in_characters_alone_have_files_of_their_own_names():
    files = []
    for role in ("rollout 1", "rollout-1", "Rollout/1", "x" * 60 + "a", "x" * 60 + "b"):
        source = Source(f"{role}.json", "kineto", 0, "name", clock_base_ns=0)
        traces = {source.path: (SourceRef(source.path, "kineto", 0), "")}
        files.append(describe_rank_file(StoreEntry(0, 0, 0, None, None, source), role, traces))
    assert [file.name for file in name_apart(files)] == [
        "rollout-1-rank0.json",
        "rollout-1-rank0-2.json",
        "Rollout-1-rank0-3.json",
        f"{'x' * 60}-rank0.json",
        f"{'x' * 60}-rank0-2.json",
    ]

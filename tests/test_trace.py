"""load: any paths to one table, in this process or in others, with runs kept apart."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import http.server
import importlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pytest

import tracekit
from tests.reference import read
from tests.stores import write_store
from tracekit.doctor import diagnose
from tracekit.errors import InputError, OptionError
from tracekit.parsers import remote
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.notices import notice_sentence
from tracekit.schema import EVENTS, LABELLED
from tracekit.store.source_workers import worker_count
from tracekit.store.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


@pytest.fixture(scope="module")
def trace(samples):
    return tracekit.load(samples / "reload")


def text(rank, *, start=1.79e15, size=2, stray=""):
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{stray}",
        "ts": int(start),
        "dur": 5,
        "pid": 0,
        "tid": 7,
    }
    event["args"] = {"device": 0, "stream": 7}
    return json.dumps(
        {"distributedInfo": {"rank": rank, "world_size": size}, "traceEvents": [event]}
    )


def test_a_trace_holds_every_rank(trace, samples):
    assert trace.ranks == (0, 1, 2, 3)
    assert trace.events.schema == EVENTS
    for rank in trace.ranks:
        expected = read(samples / f"reload/rank{rank}.pt.trace.json.gz")
        assert trace.rank(rank).events.height == expected.height
        assert trace.events.filter(pl.col("rank") == rank).height == expected.height
    assert [source.rank_from for source in trace.sources] == ["content"] * 4
    assert trace.notices == ()


def test_other_libraries_take_it(trace):
    table = pa.table(trace)
    assert table.num_rows == trace.events.height
    frame = trace.to_pandas()
    assert list(frame.columns) == EVENTS.names()
    assert frame["start_ns"].dtype == "int64"
    assert frame["start_ns"].tolist() == trace.events["start_ns"].to_list()
    assert pl.DataFrame(trace).equals(trace.events)


def test_a_notebook_shows_a_row_a_rank(trace):
    page = trace._repr_html_()
    assert page.count("<tr>") == 1 + 4
    assert "rank3.pt.trace.json.gz" in page
    assert repr(trace) == f"<Trace: 4 ranks, {trace.events.height:,} events>"


def test_html_is_escaped(tmp_path):
    path = tmp_path / "rank0<b>.json"
    path.write_text(text(0, size=1))
    assert "<b>.json" not in tracekit.load(path)._repr_html_()


def test_processes_read_the_same(trace, samples):
    apart = tracekit.load(samples / "reload", workers=2)
    assert apart.sources == trace.sources
    assert apart.events.equals(trace.events)


def test_only_the_ranks_asked_for(samples):
    assert tracekit.load(samples / "reload", ranks=[2]).ranks == (2,)
    with pytest.raises(InputError, match="there is no rank 7"):
        tracekit.load(samples / "reload", ranks=[2, 7])
    with pytest.raises(InputError, match="there is no rank 7"):
        tracekit.load(samples / "nsys-1f1b", ranks=[7])
    with pytest.raises(InputError, match="there is no rank 7"):
        tracekit.load(samples / "reload", ranks=[0]).rank(7)


def test_a_store_loads_identically_and_without_parsing(trace, samples, tmp_path, monkeypatch):
    write_store(tmp_path / "store", trace.parts)
    monkeypatch.setitem(sys.modules, "tracekit.parsers.kineto", None)  # parsing would now fail
    back = tracekit.load(tmp_path / "store")
    assert back.sources == trace.sources
    assert back.events.equals(trace.events)
    assert tracekit.load(tmp_path / "store", ranks=[1]).ranks == (1,)
    assert tracekit.load(tmp_path / "store" / "tracekit-store.json").ranks == (0, 1, 2, 3)


def test_nsight_reports_load_alike(samples):
    trace = tracekit.load(samples / "nsys-1f1b")
    assert trace.ranks == (0, 1, 2, 3)
    assert {source.reader for source in trace.sources} == {"nsight"}
    assert any(notice.code == "several-exports" for notice in trace.notices)


def test_a_url_is_fetched_by_whoever_reads_it(samples, trace):
    pytest.importorskip("fsspec")
    url = f"file://{samples}/reload"
    there = tracekit.load(url, ranks=[1])
    assert there.events.equals(trace.rank(1).events)
    assert there.sources[0].path.startswith("file://")


def test_traces_are_read_over_http(samples, trace):
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(samples / "reload"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        there = tracekit.load([f"{url}/rank1.pt.trace.json.gz", f"{url}/rank0.pt.trace.json.gz"])
        with pytest.raises(InputError, match="there is no such file"):
            tracekit.load(f"{url}/rank9.json")
        server.shutdown()
    assert there.ranks == (0, 1)
    assert there.rank(1).events.equals(trace.rank(1).events)


def test_a_redirect_to_another_host_is_followed_and_named(samples, trace, capsys):
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")

    class Redirecting(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send_head(self):
            if self.headers["Host"].startswith("localhost"):
                return super().send_head()
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}{self.path}")
            self.end_headers()
            return None

    handler = partial(Redirecting, directory=str(samples / "reload"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = tracekit.load(f"http://127.0.0.1:{server.server_port}/rank1.pt.trace.json.gz")
        server.shutdown()
    assert there.events.equals(trace.rank(1).events)
    assert "127.0.0.1 redirects to localhost" in capsys.readouterr().err


@pytest.fixture
def web(samples):
    """Return the address of a server that gives a sample to whoever knows the password or the token."""
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")

    class Guarded(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send_head(self):
            knows_password = (
                self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:s3cret").decode()
            )
            if not (knows_password or "token=s3cret" in self.path):
                self.send_error(403)
                return None
            return super().send_head()

    handler = partial(Guarded, directory=str(samples / "reload"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "http://me:s3cret@{web}/rank1.pt.trace.json.gz",
        "http://{web}/rank1.pt.trace.json.gz?token=s3cret&x=*",
        "http://me:s3cret@{web}/rank1.pt.trace.json.gz?token=s3cret#s3cret",
    ],
)
def test_the_secrets_of_a_url_are_used_and_kept_nowhere(web, tmp_path, capfd, url):
    url = url.format(web=web)
    analysis = tracekit.analyze(url, timeline=True)
    assert [source.rank for source in analysis.sources] == [1]
    for name in ("a.html", "a.json", "a.md", "a.csv"):
        analysis.save(tmp_path / name)
    store = tracekit.ingest(url, tmp_path / "store")
    assert store.sources[0].path == f"http://{web}/rank1.pt.trace.json.gz"
    tracekit.ingest(url, tmp_path / "store", resume=True)
    assert "s3cret" not in f"{tracekit.diff(url, url)}{diagnose(url).to_json()}"
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes(), file
    out, err = capfd.readouterr()
    assert "s3cret" not in out + err


@pytest.mark.parametrize(
    "url",
    [
        "http://me:s3cre1@{web}/rank1.pt.trace.json.gz",
        "http://{web}/x.json?token=s3cre1",
        "http://s3cre1@{web}/",
    ],
)
def test_the_secrets_of_a_url_are_not_printed_where_it_fails(web, url):
    with pytest.raises(InputError) as raised:
        tracekit.load(url.format(web=web))
    assert "s3cre1" not in str(raised.value)
    assert raised.value.message.startswith(f"http://{web}/")


def test_addresses_that_differ_in_their_query_alone_are_two_sources(web):
    urls = [f"http://{web}/rank1.pt.trace.json.gz?token=s3cret&part={number}" for number in (1, 2)]
    with pytest.raises(InputError, match=r"rank 1 has 2 files.*rank1\.pt\.trace\.json\.gz#2"):
        tracekit.load(urls)


@pytest.mark.parametrize("accepts", [False, True])
def test_a_server_that_never_answers_is_one_line(monkeypatch, accepts):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "ANSWER_TIMEOUT_S", 0.4)
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.4)
    importlib.import_module("fsspec.implementations.http").HTTPFileSystem.clear_instance_cache()
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        if not accepts:  # a full backlog leaves further connections waiting
            for _ in range(4):
                filler = sockets.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listening.getsockname())
        started = time.monotonic()
        with pytest.raises(InputError, match="did not answer within"):
            tracekit.load(f"http://127.0.0.1:{listening.getsockname()[1]}/rank0.json")
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection_is_said_to_be_one(host):
    pytest.importorskip("aiohttp")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # a port at which nobody listens
        port = unused.getsockname()[1]
        with pytest.raises(
            InputError, match=rf"{host}:{port}/rank0.json: connection refused \(check"
        ):
            tracekit.load(f"http://{host}:{port}/rank0.json")


def test_a_server_may_think_for_a_minute():
    assert (remote.CONNECT_TIMEOUT_S, remote.ANSWER_TIMEOUT_S) == (30, 60)  # as docs/fleet.md says


@pytest.mark.parametrize(
    ("source", "location", "refused"),
    [
        ("http://93.184.216.34/a", "http://127.0.0.1/a", True),
        ("http://93.184.216.34/a", "http://169.254.169.254/latest/meta-data", True),
        ("http://93.184.216.34/a", "http://[::1]/a", True),
        ("http://93.184.216.34/a", "http://8.8.8.8/a", False),
        ("http://10.0.0.7/a", "http://10.0.0.8/a", False),
        ("http://93.184.216.34/a", "/b", False),
    ],
)
def test_a_redirect_from_a_public_to_a_private_address_is_refused(source, location, refused):
    yarl = pytest.importorskip("yarl")
    response = SimpleNamespace(headers={"Location": location})
    check = remote.check_redirect_target(
        None,
        None,
        SimpleNamespace(url=yarl.URL(source), response=response),
        public_hosts=set(),
    )
    # A browser of other tests may have a loop running in this thread.
    with ThreadPoolExecutor(1) as apart:
        outcome = apart.submit(asyncio.run, check)
    with (
        pytest.raises(InputError, match="private address") if refused else contextlib.nullcontext()
    ):
        outcome.result()


PUBLIC, PRIVATE = "93.184.216.34", "127.0.0.1"


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([PUBLIC, PRIVATE], True),
        ([PUBLIC, PUBLIC], False),
        ([PRIVATE, PRIVATE], False),
        ([PRIVATE, PUBLIC, PRIVATE], True),
    ],
)
def test_a_name_that_led_to_a_public_address_leads_to_no_private_one(monkeypatch, answers, refused):
    """Whoever has the domain answers each question as they like (DNS rebinding)."""
    pytest.importorskip("aiohttp")
    pending = list(answers)

    def getaddrinfo(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (pending.pop(0), 80))]

    async def resolve_all():
        resolver = remote.public_resolver(set())
        for _ in answers:
            await resolver.resolve("rebinding.example", 80)
        await resolver.close()

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    # A browser of other tests may have a loop running in this thread.
    with ThreadPoolExecutor(1) as apart:
        outcome = apart.submit(asyncio.run, resolve_all())
    with (
        pytest.raises(InputError, match="a private one now")
        if refused
        else contextlib.nullcontext()
    ):
        outcome.result()


def test_a_redirect_is_judged_by_the_address_that_was_asked(monkeypatch):
    """The name of the server that redirects leads to a private address by now."""
    yarl = pytest.importorskip("yarl")
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (PRIVATE, 80))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [entry])
    response = SimpleNamespace(headers={"Location": f"http://{PRIVATE}/x.json"})
    redirect = SimpleNamespace(url=yarl.URL("http://rebinding.example/x.json"), response=response)
    hosts = {"rebinding.example"}
    check = remote.check_redirect_target(None, None, redirect, public_hosts=hosts)
    with (
        ThreadPoolExecutor(1) as apart,
        pytest.raises(InputError, match="redirects to the private address"),
    ):
        apart.submit(asyncio.run, check).result()


def test_the_target_of_a_redirect_stays_where_it_was_judged_to_be(monkeypatch):
    yarl = pytest.importorskip("yarl")
    pytest.importorskip("aiohttp")
    hosts = {"public.example"}
    answers = [PUBLIC, PRIVATE]

    def getaddrinfo(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), 80))]

    async def follow():
        response = SimpleNamespace(headers={"Location": "http://other.example/x.json"})
        redirect = SimpleNamespace(url=yarl.URL("http://public.example/x.json"), response=response)
        await remote.check_redirect_target(None, None, redirect, public_hosts=hosts)
        await remote.public_resolver(hosts).resolve("other.example", 80)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with ThreadPoolExecutor(1) as apart, pytest.raises(InputError, match="led to a public address"):
        apart.submit(asyncio.run, follow()).result()


def test_a_rank_in_the_content_is_found_even_behind_the_events_of_a_gzip_file(tmp_path):
    event = json.loads(text(0))["traceEvents"][0]
    body = json.dumps({"traceEvents": [event], "distributedInfo": {"rank": 5, "world_size": 6}})
    (tmp_path / "rank9.json.gz").write_bytes(gzip.compress(body.encode()))
    trace = tracekit.load(tmp_path / "rank9.json.gz")
    assert trace.ranks == (5,)
    assert trace.events["rank"].to_list() == [5]


def test_the_rank_given_reaches_the_table(tmp_path):
    event = json.loads(text(0))["traceEvents"]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": event}))
    (tmp_path / "worker4").mkdir()
    (tmp_path / "worker4/t.json").write_text(json.dumps({"traceEvents": event}))
    given = tracekit.load(tmp_path / "t.json", file_rank=3)
    assert (given.ranks, given.events["rank"].to_list(), given.sources[0].rank_from) == (
        (3,),
        [3],
        "option",
    )
    named = tracekit.load(tmp_path / "worker4")
    assert (named.ranks, named.events["rank"].to_list(), named.sources[0].rank_from) == (
        (4,),
        [4],
        "name",
    )
    alone = tracekit.load(tmp_path / "t.json")
    assert (alone.ranks, alone.sources[0].rank_from) == ((0,), "only file")


def test_missing_ranks_are_noticed(tmp_path):
    (tmp_path / "rank1.json").write_text(text(1, size=4))
    (notice,) = tracekit.load(tmp_path).notices
    assert notice.code == "missing-ranks"
    assert "3 of 4 ranks are not here: 0, 2, 3" in notice_sentence(notice)


def test_ranks_of_two_days_are_two_runs(tmp_path):
    (tmp_path / "rank0.json").write_text(text(0))
    (tmp_path / "rank1.json").write_text(text(1, start=1.79e15 + 86400e6))
    with pytest.raises(
        InputError, match=r"different runs: .*rank1\.json begins 24 h after .*rank0\.json ends"
    ):
        tracekit.load(tmp_path)


def test_clocks_that_count_from_boot_are_no_evidence_of_two_runs(tmp_path):
    (tmp_path / "rank0.json").write_text(text(0, start=5e9))
    (tmp_path / "rank1.json").write_text(text(1, start=9e12))
    assert tracekit.load(tmp_path).ranks == (0, 1)


def test_the_first_failure_is_raised_and_the_others_counted(tmp_path):
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text(text(rank, size=3))
    (tmp_path / "rank1.json").write_text('{"traceEvents": [' + "}" * 50)
    (tmp_path / "rank2.json").write_text('{"traceEvents": [' + "}" * 50)
    with pytest.raises(InputError, match=r"rank1\.json: .*1 more files") as error:
        tracekit.load(tmp_path, on_damage="error")
    assert "\n" not in str(error.value)


def test_workers_are_bounded_by_ranks_work_and_memory(monkeypatch):
    monkeypatch.setattr("tracekit.store.source_workers.cores", lambda: 8)
    monkeypatch.setattr("tracekit.store.source_workers.available_memory", lambda: 100 << 30)
    large = [SourceRef(f"{i}.json", "kineto", i, bytes=2 << 30) for i in range(4)]
    assert worker_count(large) == 4
    assert worker_count(large * 4) == 8
    assert worker_count(large[:1]) == 1
    assert worker_count([SourceRef("a.json", "kineto", bytes=1 << 20)] * 8) == 1
    monkeypatch.setattr("tracekit.store.source_workers.available_memory", lambda: 7 << 30)
    assert worker_count(large) == 2


def test_every_public_name_is_there():
    for name in tracekit.__all__:
        assert getattr(tracekit, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = tracekit.nothing


def test_several_ranks_are_labelled_as_each_alone(samples):
    """The first stage sends 3, then sends and receives at once for 5 micro-batches, and receives 3; the last one
    receives 1, sends and receives at once 7 times, and sends 1."""
    trace = tracekit.load(samples / "1f1b")
    labelled = tracekit.classify(trace.events)
    alone = pl.concat([tracekit.classify(trace.rank(rank).events) for rank in trace.ranks])
    assert labelled.equals(alone)
    assert labelled.equals(trace.labelled)
    messages = dict(labelled.filter(label="pp_comm")["rank"].value_counts().iter_rows())
    assert (messages[0], messages[3]) == (3 + 5 + 3, 1 + 7 + 1)
    shuffled = tracekit.classify(
        pl.concat([rank_events.events for rank_events in reversed(trace.parts)])
    )
    assert shuffled.equals(alone)  # sorted by rank


def test_no_events_have_no_labels():
    assert tracekit.classify(EVENTS.to_frame()).schema == LABELLED
    assert Trace(()).labelled.schema == LABELLED


def test_processes_of_several_roles_are_labelled_apart(samples):
    trace = tracekit.load(samples / "rl", ranks=[0])
    assert len(trace.roles) == 2
    apart = [tracekit.classify(trace.role(role).events) for role in trace.roles]
    assert trace.labelled.equals(pl.concat(apart))
    with pytest.raises(OptionError, match="rank 0 has events of several processes"):
        tracekit.classify(trace.events)


def test_rules_of_ones_own_label_a_trace_and_its_analysis(tmp_path, samples):
    rules = tmp_path / "my.toml"
    rules.write_text('[[rule]]\nname = "mine"\nlabel = "optimizer"\nwhen = { name = "." }\n')
    trace = tracekit.load(samples / "reload", ranks=[0], rules=rules)
    assert set(trace.labelled["rule"]) == {"mine"}
    assert set(tracekit.classify(trace.events, rules=rules)["rule"]) == {"mine"}
    assert set(tracekit.analyze(trace, schedule="none").total.label_ns) == {"optimizer"}

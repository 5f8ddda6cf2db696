"""What a server lists is its own choice: nothing of it is written outside of our folder or grows without bound."""

import contextlib
import gzip
import http.server
import importlib
import threading
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import InputError
from tracekit.parsers import remote


@contextlib.contextmanager
def serve(pages):
    """Serve *pages*, (headers, body) by path; yield the address."""
    importlib.import_module("fsspec.implementations.http").HTTPFileSystem.clear_instance_cache()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(self.answer())

        def answer(self):
            page = pages.get(self.path)
            if page is None:
                self.send_error(404)
                return b""
            headers, body = page
            self.send_response(200)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            return body

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def listing(names):
    """Return a web server's page that lists *names*."""
    return {"Content-Type": "text/html"}, "".join(
        f'<a href="{name}">{name}</a>' for name in names
    ).encode()


class JoiningSystem:
    """A file system that joins whatever is listed to the target, as fsspec did until 2026.7."""

    def __init__(self, names):
        self.names = names

    def find(self, path, maxdepth=None):
        return [f"{path}/{name}" for name in self.names]

    def get_file(self, file, target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(b"evil")

    def get(self, path, target, recursive):
        for name in self.names:
            self.get_file(f"{path}/{name}", f"{target}/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.parquet",
        "../../../../evil.parquet",
        "a/../../../evil.parquet",
        "/evil.parquet",
        "..",
        ".",
        "",
        "a/evil.parquet",
        "..\\evil.parquet",
        "C:evil.parquet",
        "evil\0.parquet",
    ],
)
def test_a_listing_writes_nothing_outside_of_our_folder(tmp_path, monkeypatch, name):
    home = tmp_path / "a/b/c/d/e"
    home.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    system = JoiningSystem(["StringIds.parquet", name])
    monkeypatch.setattr(remote, "open_file_system", lambda url: (system, url))
    with (
        pytest.raises(InputError, match="not a file in that folder"),
        remote.fetch_to_local("http://host/x.parquetdir"),
    ):
        pass
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_listing_of_too_many_files_is_one_line(monkeypatch):
    system = JoiningSystem([f"{number}.parquet" for number in range(1001)])
    monkeypatch.setattr(remote, "open_file_system", lambda url: (system, url))
    with (
        pytest.raises(InputError, match=r"lists 1,001 files"),
        remote.fetch_to_local("http://host/x.parquetdir"),
    ):
        pass


def test_an_exported_folder_is_read_over_http(samples):
    pytest.importorskip("aiohttp")
    folder = samples / "nsys-1f1b/rank0.parquetdir"
    pages = {f"/rank0.parquetdir/{file.name}": ({}, file.read_bytes()) for file in folder.iterdir()}
    pages["/rank0.parquetdir"] = listing(file.name for file in folder.iterdir())
    with serve(pages) as address:
        there = tracekit.load(f"{address}/rank0.parquetdir")
    assert there.events.equals(tracekit.load(folder).events)


def test_a_server_that_lists_files_above_the_folder_is_one_line(samples, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pages = {
        "/x.parquetdir": listing(["StringIds.parquet", "../../../../evil.parquet"]),
        "/x.parquetdir/StringIds.parquet": ({}, b"PAR1"),
        "/evil.parquet": ({}, b"evil"),
    }
    with serve(pages) as address, pytest.raises(InputError, match=r"lists .*evil\.parquet"):
        tracekit.load(f"{address}/x.parquetdir")
    assert not list(tmp_path.iterdir())


def test_a_page_of_unended_tags_is_read_in_linear_time():
    pytest.importorskip("aiohttp")
    page = {"Content-Type": "text/html"}, b"<a " * 1_000_000  # takes fsspec's own pattern hours
    with (
        serve({"/x.parquetdir": page, "/x.parquetdir/": page}) as address,
        pytest.raises(InputError, match="lists no files"),
    ):
        tracekit.load(f"{address}/x.parquetdir")


def test_a_list_of_files_without_end_is_one_line(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "MAX_LISTING_BYTES", 1 << 20)
    with (
        serve({"/x.parquetdir": listing(["x"] * 100_000)}) as address,
        pytest.raises(InputError, match="list of files has more than 1 MB"),
    ):
        tracekit.load(f"{address}/x.parquetdir")


def test_a_server_cannot_inflate_what_it_sends(samples):
    pytest.importorskip("aiohttp")
    plain = gzip.decompress((samples / "reload/rank0.pt.trace.json.gz").read_bytes())
    packed = gzip.compress(plain + b" " * 50_000_000)
    pages = {"/rank0.json": ({"Content-Encoding": "gzip"}, packed)}
    with serve(pages) as address:
        with remote.fetch_to_local(f"{address}/rank0.json") as copy:
            assert Path(copy).stat().st_size == len(packed)  # not 50 MB
        there = tracekit.load(f"{address}/rank0.json")
    assert there.events.equals(tracekit.load(samples / "reload", ranks=[0]).events)


def test_a_packed_list_of_files_is_not_inflated():
    pytest.importorskip("aiohttp")
    headers, body = listing(["a.parquet"] * 1_000_000)
    page = {**headers, "Content-Encoding": "gzip"}, gzip.compress(body)
    with (
        serve({"/x.parquetdir": page}) as address,
        pytest.raises(InputError, match="lists no files"),
    ):
        tracekit.load(f"{address}/x.parquetdir")

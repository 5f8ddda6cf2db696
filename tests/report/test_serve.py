"""Tests of the server that hands out an export once: who gets the file and who does not."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracekit.cli.export import parse_moment
from tracekit.errors import OptionError, OutputError
from tracekit.report.perfetto.serve import VIEWER, SingleDownloadServer, moment_parameters

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


@pytest.fixture
def offer(tmp_path):
    file = tmp_path / "trace.json.gz"
    file.write_bytes(b"0123456789" * 1000)
    with SingleDownloadServer(file, port=0) as offer:
        waiting = threading.Thread(target=offer.wait, daemon=True)
        waiting.start()
        offer.waiting = waiting
        yield offer
        offer.read = True  # a test that read nothing: let the thread end before its server does
        waiting.join(10)


def get(url, **headers):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=10
        ) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_the_one_reader_gets_the_file_and_the_viewer_may_read_it(offer):
    status, headers, body = get(offer.url, Origin=VIEWER)
    assert status == 200
    assert body == b"0123456789" * 1000
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    offer.waiting.join(10)
    assert not offer.waiting.is_alive(), "it goes on after it was read"


def test_a_second_reader_finds_nobody(offer):
    assert get(offer.url)[0] == 200
    offer.waiting.join(10)
    # Were it still answering.
    again = threading.Thread(target=offer.serve_forever, args=(0.1,), daemon=True)
    again.start()
    assert get(offer.url)[0] == 404
    offer.shutdown()
    again.join(10)


@pytest.mark.parametrize("path", ["/", "/trace.json.gz", "/x/trace.json.gz", "/../../etc/passwd"])
def test_other_addresses_are_not_there(offer, path):
    status, headers, _ = get(offer.url.replace(offer.path, path))
    assert status == 404
    assert "Access-Control-Allow-Origin" not in headers
    assert not offer.read


def test_another_name_for_this_machine_is_refused(offer):
    """A page that points its own name at 127.0.0.1 comes under that name."""
    assert get(offer.url, Host="evil.example:9001")[0] == 404
    assert get(offer.url)[0] == 200


def test_the_browsers_question_before_reading_is_answered(offer):
    connection = http.client.HTTPConnection("127.0.0.1", offer.server_port, timeout=10)
    asked = {"Origin": VIEWER, "Access-Control-Request-Private-Network": "true"}
    connection.request("OPTIONS", offer.path, headers=asked)
    answer = connection.getresponse()
    assert answer.status == 204
    assert answer.getheader("Access-Control-Allow-Private-Network") == "true"
    assert answer.getheader("Access-Control-Allow-Origin") == VIEWER
    connection.close()
    assert get(offer.url)[0] == 200


def test_a_reader_that_leaves_early_can_come_back(tmp_path):
    file = tmp_path / "big.json"
    file.write_bytes(b"x" * 30_000_000)
    with SingleDownloadServer(file, port=0) as offer:
        waiting = threading.Thread(target=offer.wait, daemon=True)
        waiting.start()
        with socket.create_connection(("127.0.0.1", offer.server_port)) as early:
            early.sendall(f"GET {offer.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            early.recv(1000)
        assert len(get(offer.url)[2]) == 30_000_000
        waiting.join(10)


def test_of_two_readers_at_once_one_gets_the_file(tmp_path):
    file = tmp_path / "big.json"
    # More than sockets hold, so that the first reader is not done at once.
    file.write_bytes(b"x" * 30_000_000)
    with SingleDownloadServer(file, port=0) as offer:
        waiting = threading.Thread(target=offer.wait, daemon=True)
        waiting.start()
        with (
            socket.create_connection(("127.0.0.1", offer.server_port)) as first,
            ThreadPoolExecutor(1) as second,
        ):
            first.sendall(f"GET {offer.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            received = len(first.recv(1000))
            answer = second.submit(get, offer.url)
            with pytest.raises(TimeoutError):
                answer.result(0.5)  # it waits for the first
            while data := first.recv(1 << 20):
                received += len(data)
            assert received > 30_000_000
            assert answer.result(10)[0] == 404
        waiting.join(10)


def test_a_file_that_is_missing_is_an_error_and_one_that_is_deleted_meanwhile_is_read(
    offer, tmp_path
):
    with (
        SingleDownloadServer(tmp_path / "nowhere.json", port=0) as other,
        pytest.raises(FileNotFoundError),
    ):
        other.wait()
    assert get(offer.url.replace(offer.path, "/"))[0] == 404  # it is being served
    offer.file.unlink()
    assert get(offer.url)[2] == b"0123456789" * 1000


def test_it_listens_on_loopback_only(offer):
    assert offer.socket.getsockname()[0] == "127.0.0.1"
    others = {
        info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    } - {"127.0.0.1"}
    for address in [*others, "127.0.0.2"]:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, offer.server_port), timeout=5).close()


def test_a_port_in_use_is_one_clear_error(offer, tmp_path):
    with pytest.raises(OutputError, match="cannot be used: Address already in use"):
        SingleDownloadServer(tmp_path / "x", port=offer.server_port)


def test_the_command_prints_the_link_and_ends_once_read(samples):
    command = [sys.executable, "-c", "from tracekit.cli import main; main()"]
    words = ["export", "--open", samples / "reload", "--ranks", "0", "--port", "0"]
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        link = running.stdout.readline().strip()
        assert link.startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:")
        status, _, body = get(link.partition("?url=")[2])
        assert status == 200
        assert body[:2] == b"\x1f\x8b"
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 0
        assert errors.endswith("read; done\n")


def test_an_exported_file_is_known_and_a_trace_is_not(samples, tmp_path):
    from tracekit.report.perfetto.serve import is_export
    from tracekit.run.export import export

    packed, plain = tmp_path / "out.json.gz", tmp_path / "out.json"
    export([samples / "reload"], packed, schedule="none", ranks=(0,))
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    assert is_export(packed)
    assert is_export(plain)
    assert not is_export(next((samples / "reload").glob("rank0*")))
    assert not is_export(tmp_path / "nowhere.json")


NAMES = (
    "a\r\nX-Pwned: 1.json",
    "<script>alert(1)<\N{DIVISION SLASH}script>.json",
    "é ü #?&.json",
    "\x1b[31m.json.gz",
)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_file_is_called_its_address_is_one_word_that_works(tmp_path, name):
    (tmp_path / name).write_bytes(b"<script>window.PWNED=1</script>")
    with SingleDownloadServer(tmp_path / name, port=0) as offer:
        waiting = threading.Thread(target=offer.wait, daemon=True)
        waiting.start()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w.%~/-]+", offer.url)
        assert get(f"http://127.0.0.1:{offer.server_port}/%C3%A9/x")[0] == 404
        status, headers, body = get(offer.url)
        waiting.join(10)
    assert (status, body) == (200, b"<script>window.PWNED=1</script>")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "X-Pwned" not in headers


def test_a_link_to_a_moment_counts_from_the_files_own_zero(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(
        '{"displayTimeUnit":"ms","baseTimeNanoseconds":1000000,"otherData":{"tracekit":"1"},"traceEvents":[]}'
    )
    assert moment_parameters(file, 1_500_000, 1_510_000) == "&visStart=480000&visEnd=530000"
    assert moment_parameters(file, 1_001_000, 1_001_000) == "&visStart=0&visEnd=6000"


def test_a_moment_is_a_start_and_an_end():
    assert parse_moment("15:17") == (15, 17)
    for text in ("x", "9:3", "-4"):
        with pytest.raises(OptionError, match="is not a moment"):
            parse_moment(text)

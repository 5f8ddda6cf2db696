"""A stand-in of GitHub's and GitLab's comments, on a port of this machine."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Forge:
    """Comments of one pull request, and what it shall answer instead."""

    def __init__(self, *, user="github-actions[bot]"):
        self.user = user
        self.comments = []
        self.requests = []
        self.failures = []
        """Answers of the next requests: a status, "late" or "garbage"; None answers."""
        self.headers = []
        self.on_request = lambda number: None
        """Called with the number of a request, from 1, when it arrives."""

    def add(self, body, *, user="somebody"):
        """Add a comment by somebody, in the form of both services."""
        number = 1000 + len(self.comments)
        author = {"user": {"login": user}, "author": {"username": user}}
        self.comments.append({"id": number, "body": body, **author})
        return number

    def answer(self, method, url, payload):
        """Return the status and the JSON of an answer."""
        path = urlsplit(url).path
        query = parse_qs(urlsplit(url).query)
        if path.endswith("/user"):
            return 200, {"username": self.user}
        if method == "GET":
            size, page = int(query["per_page"][0]), int(query["page"][0])
            return 200, self.comments[(page - 1) * size : page * size]
        if method == "POST":
            self.add(payload["body"], user=self.user)
            return 201, self.comments[-1]
        number = int(re.search(r"/(\d+)$", path)[1])
        for comment in self.comments:
            if comment["id"] == number:
                comment["body"] = payload["body"]
                return 200, comment
        return 404, {"message": "Not Found"}


@contextmanager
def served(forge):
    """Serve a forge; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self):
            length = int(self.headers.get("Content-Length") or 0)
            payload = json.loads(self.rfile.read(length)) if length else None
            forge.requests.append(f"{self.command} {self.path}")
            forge.headers.append(dict(self.headers))
            forge.on_request(len(forge.requests))
            failure = forge.failures.pop(0) if forge.failures else None
            if isinstance(failure, int):
                status, data = failure, b'{"message": "no"}'
            elif failure == "garbage":
                status, data = 200, b"<html>"
            else:
                status, answer = forge.answer(self.command, self.path, payload)
                data = json.dumps(answer).encode()
            if failure == "late":  # what was asked is done, and nobody hears of it in time
                time.sleep(0.3)
            try:
                self.send_response(status)
                if status in (301, 307):
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # nobody waits any more
                pass

        do_GET = do_POST = do_PATCH = do_PUT = respond  # noqa: N815

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

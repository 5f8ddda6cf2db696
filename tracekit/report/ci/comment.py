"""One comment of the gate on a pull request of GitHub or a merge request of GitLab, written again for each run.

``python -m tracekit.report.ci.comment gate.md --name NAME --page URL`` runs in a job of either. A
hidden mark in the comment, made of the gate's name, tells the comments of several gates apart; only
comments by the token's own user are written again. The verdict is in the job's result: whatever
keeps the comment from being posted is one line in the log, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

COMMENT_TIMEOUT_S = 20.0
"""Longest wait for an answer."""
RETRY_DELAY_S = 2.0
"""Wait before the second and last attempt."""
ATTEMPTS = 2
COMMENTS_PER_PAGE = 100
"""Comments asked for at once, the most that both services give."""
MAX_COMMENT_PAGES = 50
"""Pages of comments that are searched for the gate's own."""
MAX_BODY_LENGTH = 65_000
"""Characters of a comment; GitHub takes 65,536."""
MAX_ANSWER_BYTES = 64 << 20
"""Bytes of one answer: a page of comments of full length, in the longest encoding."""
REFUSALS = {401: "the token is not valid", 403: "the token may not", 404: "it may not be seen"}
"""Answers after which there is no point in trying again."""
_PAGE_URL = re.compile(r"https?://[^\s()<>\[\]\"'`]+")


class Refused(Exception):  # noqa: N818 - not an error of the gate
    """The service does not let this token comment."""


class Unreachable(Exception):  # noqa: N818
    """The service did not answer, or not as expected; it may the next time."""


class Thread(msgspec.Struct, frozen=True):
    """The conversation of one pull request or merge request."""

    comments_url: str
    """Where comments are listed and created."""
    comment_url: str
    """Where one comment is changed, in front of its number."""
    update_method: str
    headers: Mapping[str, str]
    author_key: str
    """Key of a comment's author."""
    author_name_key: str
    """Key of the author's user name."""
    author: str
    """User name whose comments may be written again."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection is refused: the token must not follow it to another machine."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        """Return no request to follow."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def ask(
    headers: Mapping[str, str], method: str, url: str, payload: Mapping[str, str] | None = None
) -> Any:
    """Send one request and return the JSON of the answer.

    Raises:
        Refused: The service does not let this token do it.
        Unreachable: Any other failure.
    """
    if not url.startswith(("https://", "http://")):
        raise Unreachable(f"{url} is not an address")
    data = None if payload is None else json.dumps(payload).encode()
    request = urllib.request.Request(url, data, dict(headers), method=method)
    try:
        with _OPENER.open(request, timeout=COMMENT_TIMEOUT_S) as response:
            return json.loads(response.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in REFUSALS:
            raise Refused(f"{REFUSALS[error.code]} ({error.code})") from None
        raise Unreachable(f"the service answered {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"no answer ({type(reason).__name__})") from None


def github_thread(environment: Mapping[str, str], *, number: str, author: str) -> Thread | None:
    """Return the pull request of a job on GitHub; None if there is none."""
    number = number or _number_in_event(environment.get("GITHUB_EVENT_PATH"))
    repository = environment.get("GITHUB_REPOSITORY", "")
    if not number.isdecimal() or repository.count("/") != 1:
        return None
    api = environment.get("GITHUB_API_URL") or "https://api.github.com"
    issues = f"{api}/repos/{quote(repository)}/issues"
    return Thread(
        comments_url=f"{issues}/{number}/comments",
        comment_url=f"{issues}/comments/",
        update_method="PATCH",
        headers={
            "Authorization": f"Bearer {environment.get('GITHUB_TOKEN', '')}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
            "User-Agent": "tracekit",
            "X-GitHub-Api-Version": "2022-11-28",
        },
        author_key="user",
        author_name_key="login",
        author=author or "github-actions[bot]",
    )


def _number_in_event(path: str | None) -> str:
    """Return the number of the pull request that started the job; empty if none did."""
    if not path or not Path(path).is_file():
        return ""
    try:
        event = json.loads(Path(path).read_bytes())
    except ValueError:
        return ""
    pull_request = event.get("pull_request") if isinstance(event, dict) else None
    number = pull_request.get("number") if isinstance(pull_request, dict) else None
    return str(number) if isinstance(number, int) else ""


def gitlab_thread(environment: Mapping[str, str], *, number: str, author: str) -> Thread | None:
    """Return the merge request of a job on GitLab; None if there is none.

    Asks for the user of the token, unless *author* says who that is.
    """
    number = number or environment.get("CI_MERGE_REQUEST_IID", "")
    project = environment.get("CI_PROJECT_ID", "")
    if not number.isdecimal() or not project:
        return None
    api = environment.get("CI_API_V4_URL") or "https://gitlab.com/api/v4"
    headers = {
        "PRIVATE-TOKEN": environment.get("TRACEKIT_GITLAB_TOKEN", ""),
        "Content-Type": "application/json",
        "User-Agent": "tracekit",
    }
    notes = f"{api}/projects/{quote(project, safe='')}/merge_requests/{number}/notes"
    return Thread(
        comments_url=notes,
        comment_url=f"{notes}/",
        update_method="PUT",
        headers=headers,
        author_key="author",
        author_name_key="username",
        author=author or str(_mapping(ask(headers, "GET", f"{api}/user")).get("username")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mark_of(name: str) -> str:
    """Return the hidden first line of the comments of one gate.

    >>> mark_of("pretrain")
    '<!-- tracekit gate 88d5192a32ae -->'
    """
    # A word of the command line that is not UTF-8 holds halves of surrogate pairs.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"<!-- tracekit gate {digest[:12]} -->"


def comment_body(text: str, *, name: str, page: str = "") -> str:
    """Return the comment: the hidden mark, the report, and a link to the page.

    >>> comment_body("## pass", name="x", page="https://example.com/1").splitlines()[2:]
    ['## pass', '', '[Page with timeline and JSON](https://example.com/1)']
    """
    link = f"[Page with timeline and JSON]({page})" if _PAGE_URL.fullmatch(page) else ""
    frame = f"{mark_of(name)}\n\n\n\n{link}\n"
    parts = [mark_of(name), _clip(text.strip(), MAX_BODY_LENGTH - len(frame)), link]
    return "\n\n".join(part for part in parts if part) + "\n"


def _clip(text: str, max_length: int) -> str:
    """Return whole lines of a text, with folded parts closed."""
    if len(text) <= max_length:
        return text
    ending = "\n\n</details>\n\n… the rest is in the job"
    lines = text[: max_length - len(ending)].rpartition("\n")[0]
    is_open = lines.count("<details>") > lines.count("</details>")
    return lines + (ending if is_open else ending.replace("\n\n</details>", ""))


def find_comment(thread: Thread, mark: str) -> int | None:
    """Return the number of the gate's own comment; None if there is none yet."""
    for page in range(1, MAX_COMMENT_PAGES + 1):
        url = f"{thread.comments_url}?per_page={COMMENTS_PER_PAGE}&page={page}"
        comments = ask(thread.headers, "GET", url)
        if not isinstance(comments, list):
            raise Unreachable("the service answered without a list of comments")
        for comment in map(_mapping, comments):
            author = _mapping(comment.get(thread.author_key)).get(thread.author_name_key)
            is_own = author == thread.author and str(comment.get("body")).startswith(mark)
            if is_own and isinstance(comment.get("id"), int):
                return int(comment["id"])
        if len(comments) < COMMENTS_PER_PAGE:
            return None
    return None


def write_comment(thread: Thread, mark: str, body: str) -> str:
    """Create the comment, or write it again; return which."""
    number = find_comment(thread, mark)
    if number is None:
        ask(thread.headers, "POST", thread.comments_url, {"body": body})
        return "created"
    ask(thread.headers, thread.update_method, f"{thread.comment_url}{number}", {"body": body})
    return "updated"


def post(
    text: str,
    environment: Mapping[str, str],
    *,
    name: str,
    page: str = "",
    number: str = "",
    author: str = "",
) -> str:
    """Post a report as the gate's comment, and return in one line what became of it.

    Args:
        text: The report as Markdown.
        environment: Variables of the job.
        name: Name of the gate.
        page: Address of the page; empty if there is none.
        number: Number of the pull request or merge request, where the job does not say.
        author: User name of the token, where it is not the service's usual one.
    """
    is_gitlab = bool(environment.get("GITLAB_CI"))
    token = environment.get("TRACEKIT_GITLAB_TOKEN" if is_gitlab else "GITHUB_TOKEN")
    if not token:
        return "no comment: there is no token"
    make_thread = gitlab_thread if is_gitlab else github_thread
    mark = mark_of(name)
    body = comment_body(text, name=name, page=page)
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(RETRY_DELAY_S)
        try:
            # From the start each time: what was sent without an answer may have arrived.
            thread = make_thread(environment, number=number, author=author)
            if thread is None:
                return "no comment: this job is not of a pull request"
            return f"comment {write_comment(thread, mark, body)}"
        except Refused as error:
            return f"no comment: {error}; a fork's pull request, or no permission to write comments"
        except Unreachable as error:
            problem = str(error)
    return f"no comment: {problem}"


def main(words: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Post the report that the command line names; print one line."""
    parser = argparse.ArgumentParser(prog="python -m tracekit.report.ci.comment")
    parser.add_argument("report", help="Markdown that `tracekit gate -o gate.md` wrote")
    parser.add_argument("--name", default="gate", help="name of the gate: one comment for each")
    parser.add_argument("--page", default="", help="address of the page, for a link")
    parser.add_argument("--number", default="", help="number of the pull request or merge request")
    parser.add_argument("--author", default="", help="user name of the token")
    options = parser.parse_args(words)
    try:
        text = Path(options.report).read_text(encoding="utf-8")
    except OSError as error:
        sys.stdout.write(f"no comment: {options.report} cannot be read ({error.strerror})\n")
        return 0
    except UnicodeDecodeError:
        sys.stdout.write(f"no comment: {options.report} is no text\n")
        return 0
    result = post(
        text,
        os.environ if environment is None else environment,
        name=options.name,
        page=options.page,
        number=options.number,
        author=options.author,
    )
    sys.stdout.write(f"{result}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The comment of the gate on a pull request: created once, written again, never in the way."""

from __future__ import annotations

import json

import pytest

from tests.fake_forge import Forge, served
from tracekit.report.ci import comment
from tracekit.report.ci.comment import comment_body, main, mark_of, post

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(comment, "RETRY_DELAY_S", 0.0)


@pytest.fixture
def github(tmp_path):
    """A pull request of GitHub and the environment of a job on it."""
    forge = Forge()
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    with served(forge) as address:
        environment = {
            "GITHUB_API_URL": address,
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_TOKEN": "secret",
        }
        yield forge, environment


@pytest.fixture
def gitlab():
    forge = Forge(user="project_bot")
    with served(forge) as address:
        environment = {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": f"{address}/api/v4",
            "CI_PROJECT_ID": "12",
            "CI_MERGE_REQUEST_IID": "7",
            "TRACEKIT_GITLAB_TOKEN": "secret",
        }
        yield forge, environment


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_a_comment_is_created_once_and_then_written_again(service, request):
    forge, environment = request.getfixturevalue(service)
    forge.add("a remark of a person")
    assert post("first", environment, name="gate") == "comment created"
    assert post("second", environment, name="gate") == "comment updated"
    bodies = [entry["body"] for entry in forge.comments]
    assert bodies == ["a remark of a person", f"{mark_of('gate')}\n\nsecond\n"]


def test_the_requests_are_those_that_github_documents(github):
    forge, environment = github
    post("text", environment, name="gate")
    post("text", environment, name="gate")
    assert forge.requests == [
        "GET /repos/owner/name/issues/7/comments?per_page=100&page=1",
        "POST /repos/owner/name/issues/7/comments",
        "GET /repos/owner/name/issues/7/comments?per_page=100&page=1",
        "PATCH /repos/owner/name/issues/comments/1000",
    ]
    assert {headers["Authorization"] for headers in forge.headers} == {"Bearer secret"}


def test_the_requests_are_those_that_gitlab_documents(gitlab):
    forge, environment = gitlab
    forge.add(mark_of("gate"), user="project_bot")
    post("text", environment, name="gate")
    assert forge.requests == [
        "GET /api/v4/user",
        "GET /api/v4/projects/12/merge_requests/7/notes?per_page=100&page=1",
        "PUT /api/v4/projects/12/merge_requests/7/notes/1000",
    ]


def test_two_gates_do_not_write_over_each_other(github):
    forge, environment = github
    for text in ("one", "two"):
        post(text, environment, name="pretrain")
        post(text, environment, name="finetune")
    assert [entry["body"].split() for entry in forge.comments] == [
        [*mark_of("pretrain").split(), "two"],
        [*mark_of("finetune").split(), "two"],
    ]


def test_a_comment_with_the_mark_by_somebody_else_is_left_alone(github):
    forge, environment = github
    forge.add(mark_of("gate") + "\n\npass, honestly", user="somebody")
    assert post("text", environment, name="gate") == "comment created"
    assert forge.comments[0]["body"].endswith("honestly")


def test_the_comment_is_found_on_any_page(github):
    forge, environment = github
    for _ in range(230):
        forge.add("chatter")
    number = forge.add(mark_of("gate"), user=forge.user)
    assert post("text", environment, name="gate") == "comment updated"
    assert forge.requests[-2].endswith("page=3")
    assert forge.requests[-1].endswith(f"/{number}")


def test_a_full_last_page_ends_the_search(github):
    forge, environment = github
    for _ in range(100):
        forge.add("chatter")
    assert post("text", environment, name="gate") == "comment created"
    assert len(forge.requests) == 3


@pytest.mark.parametrize(("place", "result"), [(50, "updated"), (51, "created")])
def test_fifty_pages_of_comments_are_searched(github, monkeypatch, place, result):
    monkeypatch.setattr(comment, "COMMENTS_PER_PAGE", 1)
    forge, environment = github
    for _ in range(place - 1):
        forge.add("chatter")
    forge.add(mark_of("gate"), user=forge.user)
    assert post("text", environment, name="gate") == f"comment {result}"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_without_permission_it_says_so_and_tries_no_more(github, status):
    forge, environment = github
    forge.failures = [None, status]  # a fork's token may read, and not write
    line = post("text", environment, name="gate")
    assert line.startswith("no comment: ")
    assert str(status) in line
    assert "a fork's pull request" in line
    assert "\n" not in line
    assert len(forge.requests) == 2


@pytest.mark.parametrize("failure", [500, 502, 429, "garbage", 307])
def test_a_failure_is_tried_once_more(github, failure):
    forge, environment = github
    forge.failures = [failure]
    assert post("text", environment, name="gate") == "comment created"
    forge.failures = [failure, failure]
    assert post("text", environment, name="gate").startswith("no comment: ")
    assert len(forge.comments) == 1


@pytest.mark.parametrize(("late_request", "result"), [(1, "created"), (2, "updated")])
def test_a_comment_whose_answer_came_late_is_not_posted_twice(
    github, monkeypatch, late_request, result
):
    forge, environment = github

    def limit(next_request):
        """Set the time limit of a request: only the late one has a short one."""
        seconds = 0.1 if next_request == late_request else 30.0
        monkeypatch.setattr(comment, "COMMENT_TIMEOUT_S", seconds)

    limit(1)
    forge.on_request = lambda number: limit(number + 1)
    forge.failures = [None] * (late_request - 1) + ["late"]
    assert post("text", environment, name="gate") == f"comment {result}"
    assert len(forge.comments) == 1


def test_nothing_is_sent_without_a_token_or_a_pull_request(github, gitlab, tmp_path):
    forge, environment = github
    assert (
        post("x", {**environment, "GITHUB_TOKEN": ""}, name="gate")
        == "no comment: there is no token"
    )
    push = tmp_path / "push.json"
    for event in ("{}", "[]", "no JSON", '{"pull_request": {"number": "7; rm"}}'):
        push.write_text(event)
        line = post("x", {**environment, "GITHUB_EVENT_PATH": str(push)}, name="gate")
        assert line == "no comment: this job is not of a pull request"
    assert "not of a pull request" in post(
        "x", {**gitlab[1], "CI_MERGE_REQUEST_IID": ""}, name="gate"
    )
    assert forge.requests == gitlab[0].requests == []


def test_no_service_answers_at_all(github):
    _, environment = github
    line = post("x", {**environment, "GITHUB_API_URL": "http://127.0.0.1:1"}, name="gate")
    assert line == "no comment: no answer (ConnectionRefusedError)"
    assert "not an address" in post(
        "x", {**environment, "GITHUB_API_URL": "file:///etc"}, name="gate"
    )


def test_the_token_is_never_printed(github, tmp_path, capsys):
    forge, environment = github
    report = tmp_path / "gate.md"
    report.write_text("::error::text of a trace\n")
    for failures in ([], [403], [500, 500]):
        forge.failures = failures
        assert main([str(report)], environment) == 0
    assert main([str(tmp_path / "nothing.md")], environment) == 0
    captured = capsys.readouterr()
    assert "secret" not in captured.out + captured.err
    assert "::error" not in captured.out + captured.err
    assert len(captured.out.splitlines()) == 4


def test_the_link_leads_to_the_page_and_nothing_else_becomes_one():
    assert "](https://host/a/b)" in comment_body("x", name="gate", page="https://host/a/b")
    for page in ("", "javascript:alert(1)", "https://host/a) @team (", "https://host/\nx"):
        assert "](" not in comment_body("x", name="gate", page=page)


def test_the_mark_holds_nothing_of_the_name():
    assert mark_of("a --> <img>") != mark_of("b")
    assert "img" not in mark_of("a --> <img>")


@pytest.mark.parametrize("inside", ["", "<details><summary>x</summary>\n\n"])
def test_a_long_report_is_cut_below_the_limit_of_github(inside):
    text = "## first\n\n" + inside + "line of a table\n" * 20_000
    body = comment_body(text, name="gate", page="https://host/page")
    assert 60_000 < len(body) < 65_536
    assert body.count("<details>") == body.count("</details>")
    assert body.rstrip().endswith("(https://host/page)")
    short = comment_body("line\n" * 10_000, name="gate")
    assert "the rest is in the job" not in short


def test_a_name_that_is_not_utf8_has_a_mark_of_its_own():
    assert mark_of("gate \udcff") != mark_of("gate ")


def test_a_report_that_is_no_text_is_one_line(tmp_path, capsys):
    (tmp_path / "gate.md").write_bytes(b"\xff\xfe")
    assert main([str(tmp_path / "gate.md")], {}) == 0
    assert capsys.readouterr().out == f"no comment: {tmp_path / 'gate.md'} is no text\n"

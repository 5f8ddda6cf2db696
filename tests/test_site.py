"""The documentation site: every public thing has its place on it, and every link leads somewhere."""

from __future__ import annotations

import re
import tomllib
import types
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer.main

import tracekit
from docsite import assemble, pictures, tables
from docsite.api import names
from docsite.code import comments
from docsite.json_keys import DOCUMENTS
from docsite.links import EXTERNAL, anchors, targets
from tests.kept import schema_of
from tracekit import schema
from tracekit.classify.rules import builtin_rules
from tracekit.cli import make_app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "docsite" / "zensical.toml").read_text(encoding="utf-8"))[
    "project"
]
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return folder, assemble.assemble(folder)


@pytest.fixture(scope="module")
def text(site):
    folder, pages = site
    return {page: (folder / page).read_text(encoding="utf-8") for page in pages}


def in_nav(entry):
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in in_nav(value)]


def public():
    for name in names(tracekit):
        value = getattr(tracekit, name)
        yield f"tracekit.{name}", value
        if isinstance(value, types.ModuleType):
            yield from (
                (f"tracekit.{name}.{inner}", getattr(value, inner)) for inner in names(value)
            )


def test_every_page_is_in_the_navigation_once(site):
    pages = in_nav(SETTINGS["nav"])
    assert sorted(pages) == sorted(site[1])


def test_every_link_and_anchor_leads_somewhere(site, text):
    folder, _ = site
    broken = []
    for page, words in text.items():
        for target in targets(words):
            if EXTERNAL.match(target):
                address = urlsplit(target)
                sound = bool(address.netloc or address.path) and " " not in target
            else:
                path, _, anchor = target.partition("#")
                goal = (folder / page).parent / path if path else folder / page
                sound = goal.is_file() and (
                    not anchor or anchor in anchors(goal.read_text(encoding="utf-8"))
                )
            if not sound:
                broken.append(f"{page}: {target}")
    assert broken == []


def test_every_public_name_is_in_the_reference(text):
    headings = set(re.findall(r"^##+ (\S+)$", text["reference/api.md"], re.MULTILINE))
    assert {name for name, _ in public()} <= headings


def test_every_command_and_option_is_in_the_reference(text):
    page = text["reference/commands.md"]
    for name, command in typer.main.get_command(make_app()).commands.items():
        assert f"## tracekit {name}\n" in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{word}`" in page for word in parameter.opts)


@pytest.mark.parametrize("variable", [variable for variable, _ in tables.SCHEMA_TABLES.values()])
def test_every_column_of_the_schema_says_what_it_is(variable):
    beside = comments(schema, variable)
    assert list(beside) == list(getattr(schema, variable))
    assert [name for name, text in beside.items() if not text] == []


def test_every_table_of_an_analysis_and_no_other_is_explained(text):
    words = tables.words()
    shown = re.findall(r"^### (\w+)$", text["reference/tables.md"], re.MULTILINE)
    assert shown == list(dict.fromkeys(shown))
    assert set(shown) == set(words["table"])
    used = set(
        re.findall(
            r"^\| `(\w+)`",
            text["reference/tables.md"].partition("## Tables of an analysis")[2],
            re.MULTILINE,
        )
    )
    assert used == set(words["column"])


def test_every_rule_and_every_key_is_in_the_reference(text):
    assert all(
        f"| `{rule.name}` |" in text["reference/label-rules.md"] for rule in builtin_rules().rules
    )
    for name in DOCUMENTS:
        schema = schema_of(name)
        keys = schema["$defs"][DOCUMENTS[name].__name__]["properties"]
        section = text["reference/json.md"].partition(f"## {schema['title']}\n")[2]
        assert all(f"| `{key}` |" in section for key in keys)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_as_drawn(name):
    drawn = (pictures.FOLDER / name).read_text(encoding="utf-8")
    assert drawn == pictures.PICTURES[name].svg(), "draw them again: python -m docsite.pictures"


def test_one_address_for_the_repository():
    source = ABOUT["urls"]["Source"]
    assert SETTINGS["site_url"] == ABOUT["urls"]["Documentation"]
    assert all(link["link"] == source for link in SETTINGS["extra"]["social"])
    assert all(
        url.startswith(source) for name, url in ABOUT["urls"].items() if name != "Documentation"
    )

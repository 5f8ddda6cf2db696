"""Every document fits its published schema and its type; neither accepts what is not one."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from docsite.json_keys import DOCUMENTS
from tests.kept import analysis_of, schema_of
from tracekit.documents.coding import decode, encode, to_plain
from tracekit.errors import InputError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = tuple(DOCUMENTS)
MUTATIONS = 60
"""Mutations of each document."""
MAX_ROWS = 24
WITH_MOST_KEYS = {"doctor": 1}
"""Index of the document of a kind that has the most keys; otherwise the first."""


@pytest.mark.parametrize("name", NAMES)
def test_the_published_file_is_the_codes(name):
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    published = ROOT / "docs" / "schemas" / f"{schema['title'].replace('/', '-')}.json"
    assert json.loads(published.read_text()) == json.loads(json.dumps(schema)), (
        "write it again: see CONTRIBUTING"
    )


def check_document(name, document):
    """It fits its schema, and is read back as it was, every row of the right type."""
    text = encode(document)
    Draft202012Validator(schema_of(name)).validate(with_distinct_rows(json.loads(text)))
    assert decode(text.encode(), DOCUMENTS[name], name, hint="") == document
    assert json.loads(text) == json.loads(json.dumps(to_plain(document)))


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_samples_fit_and_are_read_back(name, documents):
    for document in documents[name]:
        check_document(name, document)


@pytest.mark.nightly
@pytest.mark.parametrize("run", ["1f1b", "1f1b-noshapes", "compile", "dualpipe", "rates"])
def test_documents_of_more_samples_fit_and_are_read_back(samples, run):
    check_document("analysis", analysis_of(samples / run).to_document())


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["module", "annotation", "shape"])
def test_documents_with_rows_of_other_kinds_fit_and_are_read_back(samples, by):
    check_document("analysis", analysis_of(samples / "layers", by=by).to_document())


@pytest.mark.parametrize("name", NAMES)
def test_every_number_in_a_document_is_finite(name, plain):
    """``encode`` would write null for another: a figure that is not known must be null on purpose."""
    for data in plain[name]:
        numbers = [(path, value) for path, value in values(data) if isinstance(value, float)]
        assert [path for path, value in numbers if not math.isfinite(value)] == []


def values(data, path=()):
    """Yield the path and value of everything in plain data."""
    yield path, data
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list | tuple)
        else ()
    )
    for key, item in items:
        yield from values(item, (*path, key))


def with_distinct_rows(data):
    """The document with one row of each shape in its lists of objects: validating all rows takes ten times as long."""
    if isinstance(data, dict):
        return {key: with_distinct_rows(item) for key, item in data.items()}
    if not isinstance(data, list):
        return data
    rows = {
        shape(item) if isinstance(item, dict) else index: item for index, item in enumerate(data)
    }
    return [with_distinct_rows(item) for item in rows.values()]


def shape(data):
    """The keys and types of a value, and the signs of its numbers."""
    if isinstance(data, dict):
        return tuple((key, shape(item)) for key, item in data.items())
    if isinstance(data, list):
        return tuple(dict.fromkeys(map(shape, data)))
    return type(data), isinstance(data, int | float) and data < 0


def shortened(data):
    """The document with few rows in each list, so that checking it is quick."""
    if isinstance(data, dict):
        return {key: shortened(item) for key, item in data.items()}
    return [shortened(item) for item in data[:MAX_ROWS]] if isinstance(data, list | tuple) else data


def changed(data, path, change):
    """A copy of *data* in which *change* was applied to the container and key at the end of *path*.

    Only the containers on the path are copied.
    """
    result = container = copy.copy(data)
    for key in path[:-1]:
        container[key] = copy.copy(container[key])
        container = container[key]
    change(container, path[-1])
    return result


def put(value):
    return lambda container, key: container.__setitem__(key, value)


def drop(container, key):
    del container[key]


def spread(items, count):
    """At most *count* of the items, evenly spread."""
    return [items[i * len(items) // count] for i in range(min(count, len(items)))]


def of_wrong_type(data):
    """Yield the path of each value, and the change to a wrong type: a list for a scalar, a number for any other.

    Values of notices are left out: they may be lists and scalars alike.
    """
    for path, value in values(data):
        if path and not is_value_of_notice(path):
            yield path, put(3 if isinstance(value, dict | list) else [True])


def is_value_of_notice(path):
    return len(path) > 3 and path[-4] == "warnings" and path[-2] == "values"


def without_a_required_key(data, schema):
    """Yield the path of each key that the schema requires, and the change that drops it."""
    for path, value in values(data):
        if isinstance(value, dict):
            for key in required(schema, path):
                yield (*path, key), drop


def required(schema, path):
    """The keys that the schema requires of the object at *path*."""
    nodes = [schema]
    for key in (*path, None):
        nodes = [choice for node in nodes for choice in choices(schema, node)]
        if key is None:
            return [key for node in nodes for key in node.get("required", ())]
        inner = []
        for node in nodes:
            inner += [node["properties"][key]] if key in node.get("properties", {}) else []
            inner += [
                node[word]
                for word in ("items", "additionalProperties")
                if isinstance(node.get(word), dict)
            ]
        nodes = inner
    return []


def choices(schema, node):
    if "$ref" in node:
        return choices(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    return (
        [choice for option in node["anyOf"] for choice in choices(schema, option)]
        if "anyOf" in node
        else [node]
    )


@pytest.mark.parametrize("name", NAMES)
def test_mutations_are_refused_by_the_type_and_by_the_schema(name, plain):
    data, schema = shortened(plain[name][WITH_MOST_KEYS.get(name, 0)]), schema_of(name)
    validator = Draft202012Validator(schema)
    validator.validate(data)
    mutations = [*of_wrong_type(data), *without_a_required_key(data, schema)]
    assert len(mutations) >= MUTATIONS
    for path, change in spread(mutations, MUTATIONS):
        mutation = changed(data, path, change)
        with pytest.raises(
            InputError, match=r"^x\.json: (\$|its format is|has no format)"
        ) as caught:
            decode(json.dumps(mutation).encode(), DOCUMENTS[name], "x.json", hint="write it again")
        assert "\n" not in str(caught.value)
        assert not validator.is_valid(mutation), path


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_not_finite_are_refused(name, word, plain):
    data = shortened(plain[name][0])
    numbers = [
        path
        for path, value in values(data)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    for path in spread(numbers, 20):
        text = json.dumps(changed(data, path, put("@@")), indent=1).replace('"@@"', word)
        with pytest.raises(
            InputError,
            match=r"^x\.json: (line \d+, byte \d+: (NaN|Infinity) is not a number|\$.*: )",
        ):
            decode(text.encode(), DOCUMENTS[name], "x.json", hint="write it again")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rules"])
def test_keys_of_later_versions_are_skipped(name, documents):
    document = documents[name][0]
    later = json.loads(encode(document)) | {"weather": {"rain": [1, 2]}}
    assert decode(json.dumps(later).encode(), DOCUMENTS[name], "x.json", hint="") == document


def test_a_name_that_is_not_utf8_is_read_back():
    text = encode({"format": "\udcff", "p": 1.5})
    assert decode(text.encode(), dict, "x.json", hint="") == {"format": "\udcff", "p": 1.5}


def test_the_error_names_file_place_types_and_next_step(plain):
    data = plain["analysis"][0]
    data = changed(data, ("ranks", 0, "span_ns"), put("long"))
    with pytest.raises(InputError) as caught:
        decode(
            msgspec.json.encode(data),
            DOCUMENTS["analysis"],
            "run.json",
            hint="analyze the traces again",
        )
    version = data["tracekit"]
    assert str(caught.value).startswith(
        f"run.json: $.ranks[0].span_ns: expected int, got str (written by tracekit {version})"
    )

"""JSON Schemas of the documents and the reference of their keys, both from the types in ``tracekit.documents``.

``python -m docsite.json_keys docs/schemas`` writes the schemas.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from docsite.code import fields, row, table
from tracekit.documents.analysis import AnalysisDocument
from tracekit.documents.baseline import BaselineDocument
from tracekit.documents.diff import DiffDocument
from tracekit.documents.doctor import DoctorDocument
from tracekit.documents.gate import GateDocument, GateSettings
from tracekit.documents.history import HistoryDocument
from tracekit.documents.late import LateDocument
from tracekit.documents.memory import MemoryDiffDocument, MemoryDocument
from tracekit.documents.rules_file import RulesDocument
from tracekit.documents.schedule import ScheduleDocument
from tracekit.documents.store_manifest import StoreManifest

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "analysis": AnalysisDocument,
    "schedule": ScheduleDocument,
    "diff": DiffDocument,
    "gate": GateDocument,
    "doctor": DoctorDocument,
    "late": LateDocument,
    "memory": MemoryDocument,
    "memory-diff": MemoryDiffDocument,
    "baseline": BaselineDocument,
    "store": StoreManifest,
    "history": HistoryDocument,
    "gate-settings": GateSettings,
    "rules": RulesDocument,
}
"""Documents whose schemas are published."""


def json_schema(name: str) -> Schema:
    """Return the JSON Schema of a document, with the strings under the fields as descriptions.

    >>> json_schema("analysis")["title"]
    'tracekit.analysis/2'
    """
    document_type = DOCUMENTS[name]
    schema = msgspec.json.schema(document_type)
    for struct_type in _struct_types(document_type, {}).values():
        definition = schema["$defs"][struct_type.__name__]
        for cls in struct_type.__mro__:
            for field, _, text in (
                fields(cls) if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct else ()
            ):
                key = msgspec.structs.fields(struct_type)[
                    struct_type.__struct_fields__.index(field)
                ].encode_name
                if text:
                    definition["properties"][key]["description"] = " ".join(text.split())
    format_key = schema["$defs"][document_type.__name__]["properties"].get("format")
    title = f"tracekit.{name}" if format_key is None else max(format_key["enum"])
    return {"$schema": DRAFT, "title": title, **schema}


def _struct_types(
    annotation: Any, seen: dict[str, type[msgspec.Struct]]
) -> dict[str, type[msgspec.Struct]]:
    """Return all struct types inside a type, by name."""
    if (
        isinstance(annotation, type)
        and issubclass(annotation, msgspec.Struct)
        and annotation.__name__ not in seen
    ):
        seen[annotation.__name__] = annotation
        for field in msgspec.structs.fields(annotation):
            _struct_types(field.type, seen)
    for argument in getattr(annotation, "__args__", ()):
        _struct_types(argument, seen)
    return seen


def write_schemas(folder: Path) -> None:
    """Write every schema into *folder*, one file per format."""
    for name in DOCUMENTS:
        schema = json_schema(name)
        text = json.dumps(schema, indent=1, ensure_ascii=False)
        (folder / _file_name(schema)).write_text(f"{text}\n", encoding="utf-8")


def _file_name(schema: Schema) -> str:
    return f"{schema['title'].replace('/', '-')}.json"


def page() -> str:
    """Return the page of JSON keys."""
    out = [
        "# JSON",
        "",
        "What `--json` and `-o x.json` write, and the files that tracekit reads back. A key keeps its name and meaning"
        " within its format's number; new keys may be added at any time. Null means not known, or not there. `[]` marks"
        " the items of a list, `{}` any key of an object.",
    ]
    for name in DOCUMENTS:
        schema = json_schema(name)
        file = _file_name(schema)
        out += ["", f"## {schema['title']}", "", f"JSON Schema: [{file}](../schemas/{file})", ""]
        out += table("key", "type", "always there", "meaning")
        out += [row(f"`{key}`", *cells) for key, *cells in _keys(schema, schema, "", ())]
    return "\n".join(out) + "\n"


def _keys(
    schema: Schema, root: Schema, prefix: str, parents: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield key, type, whether it is always there, and meaning of every key.

    *parents* are the types around it.
    """
    reference = schema.get("$ref", "").rpartition("/")[2]
    if reference and reference not in parents:
        definition = root["$defs"][reference]
        for name, inner in definition.get("properties", {}).items():
            always = "yes" if name in definition.get("required", ()) else ""
            yield f"{prefix}{name}", _type(inner), always, inner.get("description", "")
            yield from _inside(inner, root, f"{prefix}{name}", (*parents, reference))


def _inside(
    schema: Schema, root: Schema, path: str, parents: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    yield from _keys(schema, root, f"{path}.", parents)
    for choice in schema.get("anyOf", ()):
        yield from _inside(choice, root, path, parents)
    if isinstance(schema.get("items"), dict):
        yield from _inside(schema["items"], root, f"{path}[]", parents)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _inside(schema["additionalProperties"], root, f"{path}{{}}", parents)


def _type(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "object"))
    return f"list of {_type(schema['items'])}" if kind == "array" and schema.get("items") else kind


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))

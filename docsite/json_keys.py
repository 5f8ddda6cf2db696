"""Reference of the JSON keys that commands print, from the JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docsite.code import row, table


def page() -> str:
    """Return the page of JSON keys."""
    from tracekit.report.json_schema import SCHEMAS, json_schema

    out = [
        "# JSON",
        "",
        "What `--json` and `-o x.json` write. A key keeps its name and meaning within its format's number; new keys"
        " may be added at any time. Null means not known, or not there. `[]` marks the items of a list, `{}` any key of"
        " an object.",
    ]
    for name in SCHEMAS:
        schema = json_schema(name)
        file = f"{schema['title'].replace('/', '-')}.json"
        out += ["", f"## {schema['title']}", "", f"JSON Schema: [{file}](../schemas/{file})", ""]
        out += table("key", "type", "always there")
        out += [row(f"`{key}`", kind, "yes" if always else "") for key, kind, always in _keys(schema, "")]
    return "\n".join(out) + "\n"


def _keys(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, bool]]:
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, _type(inner), name in schema.get("required", ())
        yield from _inside(inner, path)


def _inside(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, bool]]:
    for choice in schema.get("anyOf", ()):
        yield from _inside(choice, path)
    if "items" in schema:
        yield from _inside(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _inside(schema["additionalProperties"], f"{path}{{}}")
    if "properties" in schema:
        yield from _keys(schema, f"{path}.")


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    return kind

"""Encoding and decoding of documents."""

import json
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, Self, TypeVar, get_args

import msgspec
import polars as pl
from msgspec import UnsetType

from tracekit._util.arguments import checked_path
from tracekit._util.files import read_start
from tracekit._util.inflation import GZIP, inflate_whole
from tracekit._util.text import json_text
from tracekit.errors import InputError

Document = TypeVar("Document")
Row = TypeVar("Row", bound=msgspec.Struct)
Value = TypeVar("Value")
_DTYPES = {int: pl.Int64(), float: pl.Float64(), str: pl.String(), bool: pl.Boolean()}
MAX_MAGNITUDE = 1e30
"""Largest number that a saved document may hold: its square is finite."""
MAX_INTEGER = 1 << 62
"""Largest integer that it may hold: a table can hold it, and the sum of two. It is 146 years in
nanoseconds."""
_FORMAT_KEY = re.compile(rb'"format"\s*:\s*"(tracekit\.[a-z]+/\d+)"')
_FORMAT_SEARCH_BYTES = 1 << 18
_NOT_FINITE = re.compile(rb"\b(NaN|Infinity)\b")


class _Header(msgspec.Struct):
    """The keys that tell documents apart."""

    format: str | None = None
    tracekit: str | None = None


def saved_format(path: str) -> str | None:
    """Return the ``format`` of a JSON file that tracekit wrote.

    None for a trace, a store or a folder.
    """
    file = Path(path)
    if "://" in path or not file.is_file() or not file.name.endswith((".json", ".json.gz")):
        return None
    match = _FORMAT_KEY.search(read_start(file, _FORMAT_SEARCH_BYTES) or b"")
    return match[1].decode() if match else None


def to_plain(document: Any) -> dict[str, Any]:
    """Return a document as dictionaries and lists with text keys, equal to what reading its JSON gives.

    >>> to_plain({"positions": {0: {"dp": 1}}})
    {'positions': {'0': {'dp': 1}}}
    """
    plain: dict[str, Any] = _with_lists(
        msgspec.to_builtins(document, str_keys=True, enc_hook=_to_python_number)
    )
    return plain


def _with_lists(value: Any) -> Any:
    """Return plain data with lists in place of tuples, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


def to_plain_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows of a list in a document as dictionaries."""
    return [to_plain(row) for row in rows]


def rows(frame: pl.DataFrame, row_type: type[Row]) -> list[Row]:
    """Return the rows of a table; columns that the type does not have are left out."""
    field_of_key = dict(
        zip(row_type.__struct_encode_fields__, row_type.__struct_fields__, strict=True)
    )
    columns = [
        pl.col(key).alias(name) for key, name in field_of_key.items() if key in frame.columns
    ]
    return [row_type(**row) for row in frame.select(columns).iter_rows(named=True)]


def table_schema(row_type: type[msgspec.Struct]) -> pl.Schema:
    """Return the columns of a table of such rows.

    A rank has 32 bits as in all tables, other integers have 64.

    >>> from tracekit.documents.analysis import Slack
    >>> table_schema(Slack).names()
    ['step', 'rank', 'path_ns', 'slack_ns', 'operations']
    """
    dtypes: dict[str, pl.DataType] = {}
    for field in msgspec.structs.fields(row_type):
        plain = next(
            option for option in get_args(field.type) or (field.type,) if option is not NoneType
        )
        # What is annotated, of a number with limits.
        plain = getattr(plain, "__origin__", plain)
        dtypes[field.encode_name] = pl.Int32() if field.name == "rank" else _DTYPES[plain]
    return pl.Schema(dtypes)


def known(value: Value | UnsetType, otherwise: Value) -> Value:
    """Return the value of a key that is only sometimes there.

    >>> known(msgspec.UNSET, 5), known(3, 5)
    (5, 3)
    """
    return otherwise if isinstance(value, UnsetType) else value


def encode(document: Any, *, indent: int | None = 1) -> str:
    r"""Return a document as JSON text; on one line if *indent* is None.

    A number that is not finite becomes null.

    >>> encode({"name": "é\x9b", "p": float("nan")}, indent=None)
    '{"name": "é\\u009b", "p": null}'
    """
    try:
        # Nested, so that of a large document two of its texts are held at a time, not three.
        text = msgspec.json.format(
            msgspec.json.encode(document, enc_hook=_to_python_number), indent=indent or 0
        ).decode()
    except UnicodeEncodeError:
        # A lone surrogate, as in a path that is not UTF-8: ``json_text`` writes an escape.
        text = json.dumps(to_plain(document), indent=indent, ensure_ascii=False, allow_nan=False)
    return json_text(text)


class HasDocument:
    """Base of results that have a JSON document."""

    __slots__ = ()

    def to_document(self) -> Any:
        """Return the JSON document, a type of ``tracekit.documents``."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain data."""
        return to_plain(self.to_document())

    def to_json(self, *, indent: int | None = 1) -> str:
        """Return the document as JSON text; on one line if *indent* is None."""
        return encode(self.to_document(), indent=indent)


def decode(
    data: bytes, document_type: type[Document], path: str | PathLike[str], *, hint: str
) -> Document:
    """Return the document in *data*, checked; *path* and *hint* are for the error.

    >>> decode(b'{"format": 3}', _Header, "run.json", hint="write it again")
    Traceback (most recent call last):
    tracekit.errors.InputError: run.json: $.format: expected str | null, got int (write it again)
    """
    try:
        return _decode(data, document_type)
    except (ValueError, RecursionError) as error:
        raise InputError(_problem(data, document_type, error), path=path, hint=hint) from error


def _decode(data: bytes, document_type: type[Document]) -> Document:
    data.decode()  # msgspec skips keys that a type does not have without looking at their bytes
    try:
        return msgspec.json.decode(data, type=document_type)
    except msgspec.DecodeError as error:
        # ``encode`` writes lone surrogates of paths that are not UTF-8 as escapes, which msgspec
        # does not read.
        if (
            isinstance(error, msgspec.ValidationError)
            or b"\\ud" not in data
            or _NOT_FINITE.search(data)
        ):
            raise
        return msgspec.convert(json.loads(data), document_type, str_keys=True)


def read_document(
    path: str | PathLike[str], document_type: type[Document], *, hint: str
) -> Document:
    """Return the document in a JSON file, gzipped or not.

    Numbers that sums and squares would overflow are refused.
    """
    try:
        data = checked_path(path, "file").read_bytes()
    except FileNotFoundError as error:
        raise InputError("there is no such file", path=path, hint=hint) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path, hint=hint) from error
    if data.startswith(GZIP):
        data = inflate_whole(data, str(path))
    document = decode(data, document_type, path, hint=hint)
    for key_path, number in _numbers(to_plain(document), "$"):
        if abs(number) > (MAX_INTEGER if isinstance(number, int) else MAX_MAGNITUDE):
            raise InputError(f"{key_path}: the number is too large", path=path, hint=hint)
    return document


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the path and value of every number in plain data.

    >>> list(_numbers({"ranks": [{"span_ns": 5}, {"span_ns": 7}]}, "$"))
    [('$.ranks[0].span_ns', 5), ('$.ranks[1].span_ns', 7)]
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _numbers(item, f"{path}[{i}]")
    elif isinstance(value, int | float):
        yield path, value


class SchemaProblem(NamedTuple):
    """What ``msgspec``, which has only sentences, says is wrong with a document."""

    json_path: str
    text: str
    missing_key: str | None = None
    unknown_key: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return what an error of ``msgspec`` says.

        >>> SchemaProblem.of(msgspec.ValidationError("Object contains unknown field `wen` - at `$.rule[1]`"))
        SchemaProblem(json_path='$.rule[1]', text='unknown key wen', missing_key=None, unknown_key='wen')
        """
        message, _, json_path = str(error).replace("`", "").partition(" - at ")
        _, is_missing, missing_key = message.partition("Object missing required field ")
        _, is_unknown, unknown_key = message.partition("Object contains unknown field ")
        if is_missing:
            return cls(json_path or "$", f"lacks the key {missing_key}", missing_key=missing_key)
        if is_unknown:
            return cls(json_path or "$", f"unknown key {unknown_key}", unknown_key=unknown_key)
        return cls(json_path or "$", f"{message[:1].lower()}{message[1:]}")


def problem_text(error: Exception) -> str:
    """Return an error of ``msgspec`` with the place in front.

    >>> problem_text(msgspec.ValidationError("Expected `int`, got `str` - at `$.ranks[0].span_ns`"))
    '$.ranks[0].span_ns: expected int, got str'
    """
    problem = SchemaProblem.of(error)
    return f"{problem.json_path}: {problem.text}"


def _problem(data: bytes, document_type: type[Any], error: Exception) -> str:
    """Return what is wrong with *data*, and where."""
    if not isinstance(error, msgspec.ValidationError):
        position = re.search(r"\(byte (\d+)\)", str(error))
        if isinstance(error, UnicodeDecodeError):
            return f"byte {error.start}: not UTF-8 text"
        if position is None:
            is_too_deep = isinstance(error, RecursionError)
            return (
                "is nested too deeply"
                if is_too_deep
                else f"is not complete JSON: {str(error).lower()}"
            )
        line = data.count(b"\n", 0, int(position[1])) + 1
        name = _NOT_FINITE.match(data, int(position[1]))
        what = f"{name[0].decode()} is not a number" if name else "not valid JSON"
        return f"line {line}, byte {position[1]}: {what}"
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, RecursionError):
        return problem_text(error)
    expected = next(
        (field for field in msgspec.structs.fields(document_type) if field.name == "format"), None
    )
    if expected is not None and header.format not in expected.type.__args__:
        format_name = (
            "has no format" if header.format is None else f"its format is {header.format!r}"
        )
        return f"{format_name}, not {expected.type.__args__[0]}"
    written_by = f" (written by tracekit {header.tracekit})" if header.tracekit else ""
    return f"{problem_text(error)}{written_by}"


def _to_python_number(value: Any) -> Any:
    """Return a numpy scalar as the Python number, which JSON can hold."""
    return value.item()

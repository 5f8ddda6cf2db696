"""Redaction of one event or header entry of a PyTorch trace."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tracekit.parsers.kineto.inputs import concrete_value, is_asked
from tracekit.redact import fields
from tracekit.redact.fields import NumberText, is_number, is_version
from tracekit.redact.names import NameRedactor

MAX_GROUP_NUMBER_DIGITS = 4
"""Digits of a process group's name that is a number."""

_NUMBERS_IN_TEXT = re.compile(r"-?\d[\d.eE+-]*")
"""Numbers of a list, such as [[4096, 1024]]."""


class EventRedactor:
    """Reduces events and header entries to listed keys and known words; counts what it drops."""

    def __init__(self, names: NameRedactor, keep: frozenset[str]) -> None:
        kinds = ("Python frames", "stacks", "arguments", "other events", "header entries")
        self.dropped: dict[str, int] = dict.fromkeys(kinds, 0)
        self._names = names
        self._keep = keep

    def event(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the redacted event; None if it is dropped."""
        category = event.get("cat")
        kind = category.lower() if isinstance(category, str) else ""
        if kind == "python_function" and "frames" not in self._keep:
            self.dropped["Python frames"] += 1
            return None
        phase = event.get("ph", "X")
        is_allocator = phase == "i" and event.get("name") == fields.ALLOCATOR_EVENT
        if phase not in fields.KEPT_PHASES and not is_allocator and "metadata" not in self._keep:
            self.dropped["other events"] += 1
            return None
        redacted: dict[str, Any] = {}
        for key, value in event.items():
            if key == "args":
                redacted[key] = self._arguments(value, event.get("name"))
            elif key == "name":
                redacted[key] = value if is_allocator else self._name(value, kind)
            elif key == "cat":
                redacted[key] = value if kind in fields.KEPT_CATEGORIES else self._words(value)
            elif key in fields.EVENT_NUMBERS:
                redacted[key] = self._event_number(key, value)
            elif key in ("ph", "bp", "s"):
                redacted[key] = (
                    value if _is_text(value) and len(value) == 1 and value.isascii() else None
                )
            else:
                self.dropped["arguments"] += 1
        return redacted

    def _event_number(self, key: str, value: Any) -> Any:
        """Return a time, or a process, thread or flow by its number, a large one by another number."""
        if not fields.is_event_number(value):
            return self._words(value)
        if value is None:
            return None
        is_user_word = self._names.is_user_word(str(value))
        if key in fields.EVENT_IDS:
            if is_user_word or abs(float(value)) >= fields.ID:
                return NumberText(self._names.number_pseudonym(str(value)))
            return value
        return None if is_user_word else fields.bounded_time(value)

    def _name(self, name: Any, kind: str) -> Any:
        if not _is_text(name):
            return None
        if kind in fields.GPU_CATEGORIES:
            return self._names.redact_code(name)
        if "annotations" in self._keep or kind == "python_function":
            return self._names.redact_kept(name)
        return self._names.redact(name)

    def _arguments(self, arguments: Any, name: Any) -> dict[str, Any]:
        if not isinstance(arguments, Mapping):
            return {}
        redacted: dict[str, Any] = {}
        for key, value in arguments.items():
            is_stack = key.lower() in fields.STACK_KEYS
            if self._keeps_number(key, value, fields.ARGUMENT_NUMBERS):
                redacted[key] = value
            elif key in fields.ARGUMENT_TEXTS:
                redacted[key] = self._words(value)
            elif key in fields.INPUT_VALUES and _is_text(name) and is_asked(name):
                redacted[key] = self._input_values(value)
            elif "arguments" in self._keep or ("frames" in self._keep and is_stack):
                redacted[self._names.redact_kept(key)] = self._kept(value)
            else:
                self.dropped["stacks" if is_stack else "arguments"] += 1
        return redacted

    def _input_values(self, values: Any) -> list[str]:
        """Return the inputs that are numbers, booleans or short lists of them, as text; "" for others."""
        if not isinstance(values, list):
            return []
        kept = []
        for value in values:
            number = concrete_value(value)
            text = "" if number is None else str(number)
            is_user_word = any(map(self._names.is_user_word, _NUMBERS_IN_TEXT.findall(text)))
            kept.append("" if is_user_word else text)
        return kept

    def _keeps_number(self, key: str, value: Any, limits: Mapping[str, int]) -> bool:
        return (
            key in limits
            and is_number(value, limits[key], fractions=key in fields.FRACTIONS)
            and not any(map(self._names.is_user_word, _NUMBERS_IN_TEXT.findall(str(value))))
        )

    def _words(self, value: Any) -> Any:
        """Return text, or lists of text, with known words only.

        Numbers do not stay, but for group numbers.
        """
        if isinstance(value, list):
            return [self._words(item) for item in value]
        if (
            isinstance(value, str)
            and value.isascii()
            and value.isdecimal()
            and len(value) <= MAX_GROUP_NUMBER_DIGITS
            and not self._names.is_user_word(value)
        ):
            return value
        return self._names.redact(value) if _is_text(value) else None

    def _kept(self, value: Any) -> Any:
        """Return what ``--keep`` asks for: all of it, without paths, addresses and the user's words."""
        if isinstance(value, Mapping):
            return {self._names.redact_kept(key): self._kept(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._kept(item) for item in value]
        if isinstance(value, NumberText) and self._names.is_user_word(value):
            return None
        return self._names.redact_kept(value) if _is_text(value) else value

    def header(self, key: str, value: Any) -> tuple[str, Any] | None:
        """Return the redacted header entry, key and value; None if it is dropped."""
        redacted = self._header_value(key, value)
        if redacted is not None:
            return key, redacted
        if "header" in self._keep:
            return self._names.redact_kept(key), self._kept(value)
        self.dropped["header entries"] += 1
        return None

    def _header_value(self, key: str, value: Any) -> Any:
        if key == "deviceProperties" and isinstance(value, list):
            return self._entries(value, fields.DEVICE_NUMBERS, ("name",))
        if key == "distributedInfo" and isinstance(value, Mapping):
            return self._distributed(value)
        if key == "traceName":
            return "trace.json"
        is_unit = key == "displayTimeUnit" and value in ("ms", "ns", "us")
        is_version_entry = key in fields.HEADER_VERSIONS and is_version(value)
        is_number_entry = not isinstance(value, list) and self._keeps_number(
            key, value, fields.HEADER_NUMBERS
        )
        is_base_time = key == "baseTimeNanoseconds" and fields.is_base_time(value)
        return value if is_unit or is_version_entry or is_number_entry or is_base_time else None

    def _distributed(self, info: Mapping[str, Any]) -> dict[str, Any]:
        redacted = self._entry(info, fields.DISTRIBUTED_NUMBERS, ("backend",))
        if is_version(info.get("nccl_version")):
            redacted["nccl_version"] = info["nccl_version"]
        groups = info.get("pg_config")
        if isinstance(groups, list):
            redacted["pg_config"] = self._entries(groups, fields.GROUP_NUMBERS, fields.GROUP_TEXTS)
        self.dropped["header entries"] += len(info) - len(redacted)
        return redacted

    def _entries(
        self, entries: list[Any], numbers: Mapping[str, int], texts: Any
    ) -> list[dict[str, Any]]:
        """Return what stays of each object in a list of the header."""
        return [
            self._entry(entry, numbers, texts) for entry in entries if isinstance(entry, Mapping)
        ]

    def _entry(
        self, entry: Mapping[str, Any], numbers: Mapping[str, int], texts: Any
    ) -> dict[str, Any]:
        """Return the listed numbers and texts of an object in the header."""
        kept = {}
        for key, value in entry.items():
            if key in texts:
                kept[key] = self._words(value)
            elif self._keeps_number(key, value, numbers):
                kept[key] = value
        return kept


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, NumberText)


def to_json(value: Any) -> str:
    r"""Return *value* as ASCII JSON, its numbers as they were spelled in the file.

    >>> to_json({"ts": NumberText("1.50"), "name": "a\x01"})
    '{"ts": 1.50, "name": "a\\u0001"}'
    """
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)}: {to_json(inner)}" for key, inner in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json, value)) + "]"
    return json.dumps(value)

"""An event or a header entry of a PyTorch trace, cut down to what is allowed to stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tracekit.redaction import allowed
from tracekit.redaction.text import Scrubber

_STACKS = frozenset(
    ("call stack", "call_stack", "python stack", "stack", "python parent id", "python id", "python module id")
)


class Written(str):
    """A number as it stands in the file: it goes out as it came in."""

    __slots__ = ()


class Keeper:
    """Keeps what is allowed, and counts the rest."""

    def __init__(self, scrubber: Scrubber, keep: frozenset[str]) -> None:
        kinds = ("Python frames", "stacks", "arguments", "other events", "header entries", "broken events")
        self.dropped: dict[str, int] = dict.fromkeys(kinds, 0)
        self._scrub, self._keep = scrubber, keep

    def event(self, value: Any) -> dict[str, Any] | None:
        """Return what stays of an event; None where nothing does."""
        if not isinstance(value, Mapping):
            self.dropped["broken events"] += 1
            return None
        category = value.get("cat")
        kind = category.lower() if isinstance(category, str) and not isinstance(category, Written) else ""
        if kind == "python_function" and "frames" not in self._keep:
            self.dropped["Python frames"] += 1
            return None
        phase = value.get("ph", "X")
        allocator = phase == "i" and value.get("name") == allowed.ALLOCATOR
        if (phase not in allowed.PHASES) and not allocator and "metadata" not in self._keep:
            self.dropped["other events"] += 1
            return None
        kept: dict[str, Any] = {}
        for key, inner in value.items():
            if key == "args":
                kept[key] = self._arguments(inner, kind)
            elif key == "name":
                kept[key] = inner if allocator else self._name(inner, kind)
            elif key == "cat":
                kept[key] = inner if kind in allowed.CATEGORIES else self._words(inner)
            elif key in allowed.EVENT_KEYS:
                kept[key] = inner if _plain(inner) else self._words(inner)
            else:
                self.dropped["arguments"] += 1
        return kept

    def _name(self, name: Any, kind: str) -> Any:
        if not isinstance(name, str) or isinstance(name, Written):
            return name if _plain(name) else None
        if kind in allowed.GPU_CATEGORIES or "annotations" in self._keep or kind == "python_function":
            return self._scrub(name)
        return self._scrub.free(name)

    def _arguments(self, args: Any, kind: str) -> Any:
        if not isinstance(args, Mapping):
            return {}
        kept: dict[str, Any] = {}
        for key, value in args.items():
            if key in allowed.NUMBER_ARGS and allowed.is_number(value):
                kept[key] = value
            elif key in allowed.TEXT_ARGS:
                kept[key] = self._words(value)
            elif "arguments" in self._keep or ("frames" in self._keep and key.lower() in _STACKS):
                kept[self._scrub(key)] = self._scrubbed(value)
            else:
                self.dropped["stacks" if key.lower() in _STACKS else "arguments"] += 1
        return kept

    def _words(self, value: Any) -> Any:
        """Keep numbers, and of text and lists of it the words that everybody knows."""
        if isinstance(value, list):
            return [self._words(one) for one in value]
        if isinstance(value, str) and not isinstance(value, Written):
            return self._scrub.free(value)
        return value if _plain(value) else None

    def _scrubbed(self, value: Any) -> Any:
        """What was asked to stay: all of it, but for paths, addresses and names."""
        if isinstance(value, Mapping):
            return {self._scrub(key): self._scrubbed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._scrubbed(one) for one in value]
        return self._scrub(value) if isinstance(value, str) and not isinstance(value, Written) else value

    def header(self, key: str, value: Any) -> Any:
        """Return what stays of a header entry; None where nothing does."""
        kept = self._header(key, value)
        if kept is None and "header" in self._keep:
            return self._scrubbed(value)
        self.dropped["header entries"] += kept is None
        return kept

    def _header(self, key: str, value: Any) -> Any:
        if key == "deviceProperties" and isinstance(value, list):
            return [self._device(one) for one in value if isinstance(one, Mapping)]
        if key == "distributedInfo" and isinstance(value, Mapping):
            return self._distributed(value)
        if key == "traceName":
            return "trace.json"
        number = key in allowed.HEADER_NUMBERS and allowed.is_number(value) and not isinstance(value, list)
        version = key in allowed.HEADER_VERSIONS and _is_version(value)
        unit = key == "displayTimeUnit" and value in ("ms", "ns", "us")
        empty = key == "traceEvents" and value == []
        return value if number or version or unit or empty else None

    def _device(self, device: Mapping[str, Any]) -> dict[str, Any]:
        kept = {
            key: value for key, value in device.items() if key in allowed.DEVICE_NUMBERS and allowed.is_number(value)
        }
        return {**kept, "name": self._words(device["name"])} if "name" in device else kept

    def _distributed(self, info: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in info.items():
            if key in ("rank", "world_size", "pg_count") and allowed.is_number(value):
                kept[key] = value
            elif key == "backend":
                kept[key] = self._words(value)
            elif key == "nccl_version" and _is_version(value):
                kept[key] = value
            elif key == "pg_config" and isinstance(value, list):
                kept[key] = [self._group(one) for one in value if isinstance(one, Mapping)]
            else:
                self.dropped["header entries"] += 1
        return kept

    def _group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in group.items():
            if key in allowed.GROUP_NUMBERS and allowed.is_number(value):
                kept[key] = value
            elif key in allowed.GROUP_TEXTS:
                kept[key] = self._words(value)
        return kept


def _plain(value: Any) -> bool:
    """A number, true, false or nothing; or text of at most one word such as a phase or "stream 7"."""
    if isinstance(value, str) and not isinstance(value, Written):
        return len(value) <= 1 or allowed.NUMBERS.fullmatch(value) is not None
    return value is None or isinstance(value, bool | Written)


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and allowed.VERSION.fullmatch(value) is not None


def written(value: Any) -> str:
    r"""Return a value as JSON, its numbers as they stood in the file.

    >>> written({"ts": Written("1.50"), "name": "a\x01"})
    '{"ts": 1.50, "name": "a\\u0001"}'
    """
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)

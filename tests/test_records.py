"""Frozen dataclasses behave as the standard library's, whatever is asked of them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from typing import Any, ClassVar

import pytest

import tracekit
from tracekit._util.records import PAYS, dataclass


class Shape:
    """A class body to decorate twice."""

    name: str
    sides: int = 4
    tags: list[str] = dataclasses.field(default_factory=list)
    note: Any = dataclasses.field(default=None, compare=False, repr=False)
    kinds: ClassVar[tuple[str, ...]] = ("flat", "round")

    def area(self) -> int:
        return self.sides**2


def made(decorator, base=Shape, **options):
    body = {key: value for key, value in vars(base).items() if key not in ("__dict__", "__weakref__")}
    return decorator(frozen=True, **options)(type(base.__name__, (), dict(body)))


@pytest.fixture(params=[{}, {"slots": True}, {"eq": False}, {"slots": True, "repr": False}], ids=str)
def both(request):
    return made(dataclass, **request.param), made(dataclasses.dataclass, **request.param)


@pytest.mark.parametrize("before", [0, PAYS], ids=["the first", "compiled"])
def test_arguments_defaults_and_factories(both, before):
    ours, theirs = both
    for _ in range(before):
        ours("a")
    for words, named in ((("a",), {}), (("a", 3, ["x"]), {}), (("a",), {"tags": ["y"], "note": 1})):
        mine, other = ours(*words, **named), theirs(*words, **named)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert mine.area() == other.area()
    assert ours("a").tags is not ours("a").tags
    for words, named in (((), {}), (("a", 1, [], 2, 3), {}), (("a",), {"colour": 1}), (("a",), {"name": "b"})):
        for cls in both:
            with pytest.raises(TypeError):
                cls(*words, **named)


def test_text_equality_and_hash(both):
    ours, theirs = both
    for cls in both:
        cls.__qualname__ = "Shape"
    assert "repr" in ours.__dict__.get("__repr__", object.__repr__).__name__
    if theirs.__repr__ is not object.__repr__:
        assert repr(ours("a", 3)) == repr(theirs("a", 3))
    assert (ours("a") == ours("a")) is (theirs("a") == theirs("a"))
    assert ours("a") != ours("b")
    assert (ours("a", note=1) == ours("a", note=2)) is (theirs("a", note=1) == theirs("a", note=2))
    assert ours("a") != theirs("a")
    if theirs.__hash__ is object.__hash__:
        assert ours.__hash__ is object.__hash__
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(ours("a"))
        assert hash(ours("a", tags=())) == hash(ours("a", tags=(), note=9))


def test_nothing_can_be_assigned_or_deleted(both):
    for cls in both:
        one = cls("a")
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.sides = 5
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.name


def test_fields_replacing_matching_and_signature(both):
    ours, theirs = both
    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]
    assert dataclasses.replace(ours("a"), sides=6).sides == 6
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert hasattr(ours("a"), "__dict__") is hasattr(theirs("a"), "__dict__")


@dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    y: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", self.x + 1)


@dataclass(frozen=True)
class Open:
    x: int
    made: list[int] = dataclasses.field(init=False, default_factory=lambda: [1])


@dataclass(frozen=True)
class Wider(Open):
    z: int = 0

    def __repr__(self) -> str:
        return f"<{self.x} {self.z}>"


@pytest.mark.parametrize("one", [Slotted(3), Open(3), Wider(3, 4)], ids=repr)
def test_copies_travel(one):
    for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert twin == one
        assert dataclasses.asdict(twin) == dataclasses.asdict(one)


def test_what_a_class_says_itself_stays():
    assert repr(Wider(1, 2)) == "<1 2>"
    assert Slotted(3).y == 4
    assert Wider(1) != Open(1)


def test_every_frozen_class_of_the_package_is_defined_the_cheap_way():
    """Else its module takes longer to import, and nobody would notice."""
    late = []
    for found in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if found.name.startswith(("tracekit.agents", "tracekit.__main__", "tracekit.errors", "tracekit.schema")):
            continue  # what some need is optional; the last two stand below everything
        module = importlib.import_module(found.name)
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == found.name and dataclasses.is_dataclass(one):
                late += [one.__qualname__] if one.__dataclass_params__.frozen else []
    assert late == []

"""Dataclasses behave as the standard library's, whatever is asked of them."""

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
from tracekit._util import records
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
    return decorator(**{"frozen": True} | options)(type(base.__name__, (), dict(body)))


class Plain:
    """All of whose fields are."""

    name: str
    sides: int = 4
    tags: list[str] = dataclasses.field(default_factory=list)
    note: Any = dataclasses.field(default=None, compare=False, repr=False)

    def area(self) -> int:
        return self.sides**2


FROZEN = [{}, {"slots": True}, {"eq": False}, {"slots": True, "repr": False}]


@pytest.fixture(params=[Shape, Plain], ids=["unusual", "plain"])
def body(request):
    return request.param


@pytest.fixture(params=FROZEN, ids=str)
def frozen(request, body):
    return made(dataclass, body, **request.param), made(dataclasses.dataclass, body, **request.param)


@pytest.fixture(params=[*FROZEN, *({**one, "frozen": False} for one in FROZEN)], ids=str)
def both(request, body):
    return made(dataclass, body, **request.param), made(dataclasses.dataclass, body, **request.param)


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
    elif theirs.__hash__ is None:
        assert ours.__hash__ is None
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(ours("a"))
        assert hash(ours("a", tags=())) == hash(ours("a", tags=(), note=9))


def test_nothing_can_be_assigned_or_deleted(frozen):
    for cls in frozen:
        one = cls("a")
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.sides = 5
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.name


def test_fields_replacing_matching_and_signature(both):
    ours, theirs = both
    assert list(map(repr, dataclasses.fields(ours))) == list(map(repr, dataclasses.fields(theirs)))
    assert dataclasses.replace(ours("a"), sides=6).sides == 6
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert hasattr(ours("a"), "__dict__") is hasattr(theirs("a"), "__dict__")
    assert vars(ours).get("__slots__") == vars(theirs).get("__slots__")
    assert getattr(ours, "sides", None).__class__ is getattr(theirs, "sides", None).__class__
    assert hasattr(ours, "tags") is hasattr(theirs, "tags")


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


@dataclass
class Changing:
    x: int
    seen: list[int] = dataclasses.field(default_factory=list)


@dataclass(slots=True)
class ChangingSlots(Changing):
    z: int = 0


@pytest.mark.parametrize("cls", [Changing, ChangingSlots])
def test_what_is_not_frozen_can_be_changed(cls):
    one = cls(1)
    one.x = 2
    one.seen.append(3)
    assert (one.x, one.seen, cls(2).seen) == (2, [3], [])
    assert one == cls(2, [3]) != cls(2)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_default_that_all_would_share_is_refused():
    for decorator in (dataclass, dataclasses.dataclass):
        with pytest.raises(ValueError, match="mutable default"):
            decorator(type("Sharing", (), {"__annotations__": {"tags": "list[str]"}, "tags": []}))


def test_own_equality_is_kept_and_does_not_take_the_hash():
    def body():
        return {"__annotations__": {"x": "int"}, "__eq__": lambda self, other: self.x % 10 == other.x % 10}

    for decorator in (dataclass, dataclasses.dataclass):
        cls = decorator(frozen=True)(type("Tens", (), body()))
        assert cls(3) == cls(13)
        assert hash(cls(3)) == hash(cls(3))


def test_every_class_of_the_package_is_defined_the_cheap_way():
    """Else its module takes longer to import, and nobody would notice."""
    late, below = [], ("tracekit.errors", "tracekit.schema")  # they stand below everything
    for found in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if found.name.startswith(("tracekit.agents", "tracekit.__main__", records.__name__, *below)):
            continue  # what the first needs is optional; that of records is the standard library's on purpose
        module = importlib.import_module(found.name)
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == found.name and dataclasses.is_dataclass(one):
                late += [] if one.__dataclass_params__ is records._PARAMS else [one.__qualname__]
    assert late == []

"""Dataclasses that cost little to define.

The standard decorator writes and compiles up to six methods for each class when its module is imported: 0.7 ms a class,
half of what importing tracekit took. Of these only ``__init__`` must differ from class to class; the others are shared
here. And of most classes a run makes few instances or none: ``__init__`` is compiled when that pays. What the classes
say of themselves is the standard library's, so that its ``fields``, ``replace`` and ``asdict``, and matching, work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import partial
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

PAYS = 8
"""Instances from which it pays to compile the ``__init__`` of their class."""

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
    ) -> Any:
        """Return the class as a dataclass, or what makes one of it, as ``dataclasses.dataclass`` does.

        >>> @dataclass(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1, 0) == Point(1), dataclasses.replace(Point(1), y=2)
        (Point(x=1, y=0), True, Point(x=1, y=2))
        """
        make = partial(_record, frozen=frozen, slots=slots, eq=eq, repr=repr)
        return make if cls is None else make(cls)


def _record(cls: type, *, frozen: bool, slots: bool, eq: bool, repr: bool) -> type:
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library makes one of the signature
    made: Any = _with_fields(cls, slots=slots)
    methods: dict[str, Any] = {"__init__": _first_init(made)}
    methods["__signature__"] = _Signature(made)
    if frozen:
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
    if repr:
        methods["__repr__"] = _repr
    if eq:
        equal, hashed = _equal(made)
        methods |= {"__eq__": equal, "__hash__": hashed if frozen else None}
    if slots and frozen:
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        if name not in own or (name == "__hash__" and vars(cls)[name] is None):  # Python's own, of who says ``__eq__``
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Standard:
    """What the standard library makes of a class that has one field."""

    field: int


_PARAMS: Any = vars(_Standard)["__dataclass_params__"]
_MARK: Any = vars(_Standard)["__dataclass_fields__"]["field"]._field_type  # of what is a field, and nothing else
_UNUSUAL = ("ClassVar", "InitVar", "KW_ONLY")


def _with_fields(cls: Any, *, slots: bool) -> Any:
    """Return the class, or with *slots* its twin, with fields and no methods, as the standard library makes them."""
    types: dict[str, Any] = cls.__annotations__
    if any(type(text) is not str or any(word in text for word in _UNUSUAL) for text in types.values()):
        return dataclasses.dataclass(init=False, eq=False, repr=False, slots=slots)(cls)
    fields: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= getattr(base, "__dataclass_fields__", {})
    fields |= {name: _field(cls, name, text) for name, text in types.items()}
    cls.__dataclass_fields__, cls.__dataclass_params__ = fields, _PARAMS
    if "__match_args__" not in vars(cls):
        setattr(cls, "__match_args__", tuple(one.name for one in fields.values() if one.init))  # noqa: B010
    return _slotted(cls, fields) if slots else cls


def _field(cls: Any, name: str, text: str) -> Field[Any]:
    """Return a field of a class; what the class has under its name is its default from then on, or nothing."""
    given = getattr(cls, name, MISSING)
    one: Any = given if isinstance(given, Field) else None
    if one is None:
        one = dataclasses.field(default=MISSING if isinstance(given, MemberDescriptorType) else given)
    elif one.default is MISSING:
        delattr(cls, name)
    else:
        setattr(cls, name, one.default)
    if one.default.__class__.__hash__ is None:
        raise ValueError(f"mutable default of {name}: use a default_factory")
    one.name, one.type, one._field_type, one.kw_only = name, text, _MARK, False
    return one  # type: ignore[no-any-return]


def _slotted(cls: Any, fields: dict[str, Field[Any]]) -> Any:
    """Return a class as this one, which has slots for its fields."""
    there = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    body = {key: value for key, value in vars(cls).items() if key not in (*fields, "__dict__", "__weakref__")}
    body["__slots__"] = tuple(name for name in fields if name not in there)
    twin = type(cls)(cls.__name__, cls.__bases__, body)
    twin.__qualname__ = cls.__qualname__
    return twin


def _refuse(self: object, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _repr(self: Any) -> str:
    told = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({told})"


def _equal(cls: Any) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int]]:
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    values: Callable[[Any], Any]
    values = attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return equal, hashed


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


class _Signature:
    """What ``inspect.signature`` says of a class: its compiled ``__init__``, which is made for that."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls

    def __get__(self, _: object, cls: Any) -> Any:
        import inspect

        if cls is not self._cls:  # who derives from it may be called in another way
            raise AttributeError("__signature__")
        return inspect.signature(partial(_init(cls), None))


def _first_init(cls: Any) -> Callable[..., None]:
    """Return an ``__init__`` that sets field by field, and has another compiled for many instances, or wrong words."""
    fields = dataclasses.fields(cls)
    words = [one.name for one in fields if one.init]
    needed = {one.name for one in fields if one.init and one.default is MISSING and one.default_factory is MISSING}
    made, set_, finish = 0, object.__setattr__, hasattr(cls, "__post_init__")

    def init(self: Any, *given: Any, **named: Any) -> None:
        nonlocal made
        made += 1
        values = dict(zip(words, given, strict=False)) | named
        fits = len(values) == len(given) + len(named) and needed <= values.keys() <= set(words)
        if made > PAYS or not fits:
            cls.__init__ = _init(cls)
            cls.__init__(self, *given, **named)
            return
        for one in fields:
            if one.name in values:
                set_(self, one.name, values[one.name])
            elif one.default_factory is not MISSING:
                set_(self, one.name, one.default_factory())
            elif one.init:
                set_(self, one.name, one.default)
        if finish:
            self.__post_init__()

    return init


def _init(cls: Any) -> Callable[..., None]:
    """Return the ``__init__`` of a class, with the defaults and factories of its fields among the names it knows."""
    known: dict[str, Any] = {"set_": object.__setattr__, "MISSING": MISSING}
    words, lines = ["self"], []
    for one in dataclasses.fields(cls):
        known |= {f"default_{one.name}": one.default, f"make_{one.name}": one.default_factory}
        made = one.default_factory is not MISSING
        if one.init:
            words.append(f"{one.name}=MISSING" if made else one.name + _default(one))
        if one.init or made:
            lines.append(f"    set_(self, {one.name!r}, {_value(one, made=made)})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(words)}):\n" + ("\n".join(lines) or "    pass"), known)
    init: Callable[..., None] = known["__init__"]
    init.__annotations__ = {one.name: one.type for one in dataclasses.fields(cls) if one.init} | {"return": None}
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _default(one: Field[Any]) -> str:
    return "" if one.default is MISSING else f"=default_{one.name}"


def _value(one: Field[Any], *, made: bool) -> str:
    """Return the text of a field's value: what was given, else what its factory makes."""
    if not one.init:
        return f"make_{one.name}()"
    return f"make_{one.name}() if {one.name} is MISSING else {one.name}" if made else one.name

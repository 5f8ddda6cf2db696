"""Rules file, after TOML: ``--rules FILE`` and the files in ``classify/packs``."""

from collections.abc import Mapping

from msgspec import Struct, field

Condition = str | bool | int | tuple[str, ...]
"""A regular expression, whether the evidence is present, a number or comparison, or a list of exact
values."""


class RuleTable(Struct, frozen=True, forbid_unknown_fields=True):
    """``[[rule]]``: the label of events that meet all conditions of ``when`` and none of ``unless``."""

    name: str
    """Name of the rule."""
    label: str
    """Label that it gives."""
    when: Mapping[str, Condition]
    """Conditions by column of evidence, all of which must hold."""
    unless: Mapping[str, Condition] = {}
    """Conditions of which none may hold."""
    passes: str | None = field(default=None, name="pass")
    """forward or backward; otherwise the label and the evidence decide."""
    module: str | None = None
    """Module that it gives."""
    confidence: float = 0.9
    """Confidence of the label, 0 to 1."""
    tier: str = "name"
    """Kind of evidence on which it rests."""


class GroupTable(Struct, frozen=True, forbid_unknown_fields=True):
    """``[[group]]``: the kind of process groups that meet all conditions."""

    kind: str
    """The kind."""
    when: Mapping[str, Condition] = {}
    """Conditions by column of evidence."""


class ModuleTable(Struct, frozen=True, forbid_unknown_fields=True):
    """``[[module]]``: the module of events that meet all conditions."""

    name: str
    """The module."""
    when: Mapping[str, Condition] = {}
    """Conditions by column of evidence."""


class RulesDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules, and how groups and modules are recognised."""

    rule: tuple[RuleTable, ...] = ()
    """Rules in the order in which they are tried."""
    group: tuple[GroupTable, ...] = ()
    """Kinds of process groups."""
    module: tuple[ModuleTable, ...] = ()
    """Modules."""

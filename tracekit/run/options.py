"""Options that several calls share, and their deprecated names."""

from __future__ import annotations

import warnings
from typing import Literal

import msgspec

from tracekit.errors import OptionError

OnDamage = Literal["warn", "skip", "error"]
"""Treatment of damaged or missing ranks: use what can be read, with a notice (``warn``); leave out ranks whose file is
damaged, with a notice (``skip``); or raise (``error``)."""


class DamagePolicy(msgspec.Struct, frozen=True):
    """Treatment of damaged files and of ranks that cannot be read."""

    lenient: bool
    """Use what can be read of a damaged file; otherwise its rank cannot be read."""
    strict: bool
    """Raise if a rank is missing or cannot be read; otherwise it is left out, with a notice."""


_POLICIES = {
    "warn": DamagePolicy(lenient=True, strict=False),
    "skip": DamagePolicy(lenient=False, strict=False),
    "error": DamagePolicy(lenient=False, strict=True),
}


def damage_policy(
    on_damage: OnDamage | DamagePolicy, *, lenient: bool | None = None, strict: bool | None = None
) -> DamagePolicy:
    """Return the policy for *on_damage*; *lenient* and *strict* are deprecated, and warn unless they are None.

    >>> damage_policy("warn")
    DamagePolicy(lenient=True, strict=False)
    >>> damage_policy("ignore")
    Traceback (most recent call last):
    tracekit.errors.OptionError: on_damage cannot be 'ignore' (use warn, skip or error)
    """
    if isinstance(on_damage, DamagePolicy):
        return on_damage
    if on_damage not in _POLICIES:
        raise OptionError(f"on_damage cannot be {on_damage!r}", hint="use warn, skip or error")
    policy = _POLICIES[on_damage]
    if lenient is not None:
        _warn_deprecated("lenient", 'on_damage="skip" (load: "error") instead of lenient=False')
        policy = msgspec.structs.replace(policy, lenient=lenient)
    if strict is not None:
        _warn_deprecated("strict", 'on_damage="error" instead of strict=True')
        policy = msgspec.structs.replace(policy, strict=strict)
    return policy


def file_rank_option(file_rank: int | None, rank: int | None) -> int | None:
    """Return the rank of a single file that does not name it; *rank* is the option's deprecated name.

    >>> file_rank_option(3, None)
    3
    """
    if rank is None:
        return file_rank
    _warn_deprecated("rank", "file_rank")
    if file_rank is not None and file_rank != rank:
        raise OptionError(f"file_rank={file_rank} and rank={rank} differ", hint="give file_rank alone")
    return rank


def _warn_deprecated(name: str, replacement: str) -> None:
    """Warn about an option; the warning points at the call of the public function."""
    warnings.warn(f"the option {name} is deprecated: use {replacement}", DeprecationWarning, stacklevel=4)

"""Names for process groups that a framework made without descriptions, so that a trace says what their traffic is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.errors import OptionError

NAMELESS = ("", "undefined")
"""What PyTorch answers for a group that was made without a description."""


def describe_groups(groups: Mapping[str, Any]) -> list[str]:
    """Give each group its name as description, in PyTorch and so in the trace; return the names that were given.

    A group that has a description keeps it, and a group this rank is not in (None) is passed over.

    >>> class Group:
    ...     group_desc = "undefined"
    ...     def _set_group_desc(self, text):
    ...         self.group_desc = text
    >>> pipeline = Group()
    >>> describe_groups({"pp": pipeline, "ep": None})
    ['pp']
    >>> pipeline.group_desc
    'pp'
    """
    given = []
    for name, group in groups.items():
        if group is None:
            continue
        describe = getattr(group, "_set_group_desc", None)
        if describe is None:
            raise OptionError(
                f"groups[{name!r}] is a {type(group).__name__}, which cannot be described",
                hint="give a torch.distributed process group, with PyTorch 2.4 or newer",
            )
        if group.group_desc in NAMELESS:
            describe(name)
            given.append(name)
    return given

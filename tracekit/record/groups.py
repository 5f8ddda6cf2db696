"""Descriptions for process groups that a framework created without, so that a trace tells what their traffic is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.errors import OptionError

NO_DESCRIPTION = ("", "undefined")
"""Values of PyTorch for a group that was created without a description."""


def describe_groups(groups: Mapping[str, Any]) -> list[str]:
    """Set each group's description in PyTorch to its name; return the names that were set.

    A group that has a description keeps it. None, for a group that this rank is not in, is ignored.

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
    described = []
    for name, group in groups.items():
        if group is None:
            continue
        describe = getattr(group, "_set_group_desc", None)
        if describe is None:
            raise OptionError(
                f"groups[{name!r}] is a {type(group).__name__}, which cannot be described",
                hint="give a torch.distributed process group, with PyTorch 2.4 or newer",
            )
        if group.group_desc in NO_DESCRIPTION:
            describe(name)
            described.append(name)
    return described

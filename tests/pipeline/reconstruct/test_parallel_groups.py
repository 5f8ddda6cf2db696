"""Places of ranks from groups and layouts."""

from __future__ import annotations

import pytest

from tracekit.errors import OptionError
from tracekit.pipeline.reconstruct.parallel_groups import (
    mesh_positions,
    parse_layout,
    split_layout,
)


def test_layouts_are_meshes_with_the_last_axis_fastest():
    assert parse_layout("pp=4, ep=2") == {"pp": 4, "ep": 2}
    assert [mesh_positions({"pp": 2, "ep": 2}, r)["pp"] for r in range(4)] == [0, 0, 1, 1]
    for wrong in ("ep=2", "pp", "pp=0", "pp=2,pp=2"):
        with pytest.raises(OptionError):
            parse_layout(wrong)


def test_a_layout_may_say_how_many_ranks_a_node_has():
    assert split_layout("node=8, pp=4,ep=2") == ("pp=4,ep=2", 8)
    assert split_layout("pp=4") == ("pp=4", None)
    assert split_layout(None) == (None, None)
    for wrong in ("node=0", "node=8,node=4", "node", "node=x,pp=2", "node=8,ep=2", "pp=2,node=-1"):
        with pytest.raises(OptionError):
            split_layout(wrong)

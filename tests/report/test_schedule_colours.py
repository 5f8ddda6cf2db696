"""Test that the colours of cells differ for readers with any colour blindness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR

pytestmark = pytest.mark.slow

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, sight):
    """CIE Lab of a colour as an eye sees it: distances in it are differences people notice."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.asarray(SIGHT[sight]) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_cells_look_alike(sight):
    seen = {
        name: lab(colour, sight) for name, colour in {**CELL_COLOURS, "idle": IDLE_COLOUR}.items()
    }
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, f"{one} and {other}"

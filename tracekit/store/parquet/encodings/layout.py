"""Numbers of the encodings: those the format leaves to the writer."""

from __future__ import annotations

BLOCK, MINIBLOCK = 128, 32
"""Differences that share their least one, and those of them that share their width: as few as the format allows."""
RUN_BITS = 64
"""A run of one value pays where it would otherwise take as many bits: it needs a header, and so does what follows."""
RUN_BYTES = RUN_BITS // 8

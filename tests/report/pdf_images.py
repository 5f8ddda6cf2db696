"""Images of a PDF that Chromium prints."""

from __future__ import annotations

import re
import zlib

FORWARD_PIXEL = b"\xe6\x9f\x00"
"""Colour of forward cells and kernels, as the bytes of a pixel."""


def images_of(pdf):
    """Return the pixels of each image of a PDF."""
    images = []
    for match in re.finditer(rb"<<([^>]*?/Subtype\s*/Image.*?)>>\s*stream\r?\n", pdf, re.DOTALL):
        length = int(re.search(rb"/Length (\d+)", match[1])[1])
        images.append(zlib.decompress(pdf[match.end() : match.end() + length]))
    return images

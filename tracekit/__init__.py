"""tracekit: where did my training step go, and how far is it from the schedule I meant to run?"""

from __future__ import annotations

from tracekit._version import __version__

__all__ = ["__version__"]

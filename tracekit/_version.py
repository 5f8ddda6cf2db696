"""The version, and where pip gets it, alone in a file so that reading it imports nothing."""

__version__ = "0.4.0"
INSTALLED_FROM = "https://github.com/tracekit-ml/tracekit/archive/refs/tags/v0.4.0.tar.gz"
"""What pip installs this version from; empty once it is on PyPI.

``ci/set_version.py`` writes it, and every file that repeats it.
"""


def requirement(*extras: str) -> str:
    """Return what pip installs this version by, with these extras.

    >>> requirement("sql").partition(" @ ")[0]
    'tracekit-ml[sql]'
    """
    name = f"tracekit-ml[{','.join(extras)}]" if extras else "tracekit-ml"
    return f"{name} @ {INSTALLED_FROM}" if INSTALLED_FROM else name

"""Paths of source files as a page that is shared may show them: relative to their package, without user names."""

import re

SOURCE_ENDINGS = (
    "py", "pyi", "pyx", "ipynb", "c", "cc", "cpp", "cu", "cuh", "h", "hpp", "rs", "so"
)  # fmt: skip
"""Endings of the files whose paths are shortened."""
_SOURCE_FILE = rf"[^/\\\s:()'\"`,;]+\.(?:{'|'.join(SOURCE_ENDINGS)})(?![\w/\\])"
# The folders of an absolute path. At the start of a text, such as a frame of a stack, they may contain spaces.
_FOLDERS_AT_START = r"^(?:[A-Za-z]:)?[/\\](?:[^:()'\"`,;]*[/\\])?"
_FOLDERS_WITHIN = r"(?<![\w.)\]>/\\:-])(?:[A-Za-z]:)?[/\\](?:[^/\\\s:()'\"`,;]+[/\\])*"
_ABSOLUTE_PATH = re.compile(
    f"(?P<folders>{_FOLDERS_AT_START}|{_FOLDERS_WITHIN})(?P<file>{_SOURCE_FILE})"
)
_PACKAGES = re.compile(r".*(?:(?:site|dist)-packages|lib/python\d[\d.]*)/")
_HOME = re.compile(r".*(?:^|/)(?:home|users)/[^/]+/|^/root/", re.IGNORECASE)


def shorten_source_paths(text: str) -> str:
    """Return a text whose absolute paths of source files begin at their package, else at the file's folder.

    >>> shorten_source_paths("/opt/env/lib/python3.12/site-packages/torch/nn/modules/linear.py:125 forward")
    'torch/nn/modules/linear.py:125 forward'
    >>> shorten_source_paths("/home/ada/nets/train.py(12): step")
    'nets/train.py(12): step'
    >>> shorten_source_paths("in /home/ada/train.py:3, after aten::mm")
    'in train.py:3, after aten::mm'
    """
    if "/" not in text and "\\" not in text:
        return text
    return _ABSOLUTE_PATH.sub(_shortened, text)


def _shortened(path: re.Match[str]) -> str:
    """Return an absolute path without the folders above its package, or all but the last of them."""
    folders = path["folders"].replace("\\", "/")
    if _PACKAGES.match(folders):
        return _PACKAGES.sub("", folders) + path["file"]
    below_home = _HOME.sub("", folders)
    last_folder = below_home.strip("/").rpartition("/")[2]
    if not last_folder or last_folder.endswith(":"):
        return path["file"]
    return f"{last_folder}/{path['file']}"

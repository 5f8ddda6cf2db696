"""Run when the package is built: the README as it must be where its files are not beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def absolute(text: str, source: str) -> str:
    """Return a Markdown text with links into the repository at *source*, pictures as they are shown."""
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({source}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text)


class ReadmeHook(MetadataHookInterface):
    """Gives the package its README, with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

"""Links and anchors of a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"(?<!\\)(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(`+)(?:.+?)\1")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$")
EXTERNAL = re.compile(r"^(https?:|mailto:)")


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is prose (not inside a fence)."""
    fenced = False
    for line in text.splitlines():
        mark = bool(FENCE.match(line))
        yield line, not (fenced or mark)
        fenced ^= mark


def rewrite(text: str, moved: Callable[[str], str]) -> str:
    r"""Return *text* with each relative link replaced by ``moved(link)``; code is left alone.

    >>> rewrite("[a](b.md) `[c](d)` [e](https://f)", lambda target: "x/" + target)
    '[a](x/b.md) `[c](d)` [e](https://f)\n'
    """
    out = []
    for line, is_prose in prose(text):
        out.append(_rewrite_links(line, moved) if is_prose else line)
    return "\n".join(out) + "\n"


def _rewrite_links(line: str, moved: Callable[[str], str]) -> str:
    spans = [match.span() for match in CODE.finditer(line)]

    def replace_link(match: re.Match[str]) -> str:
        in_code = any(start < match.start() < end for start, end in spans)
        keep = in_code or EXTERNAL.match(match[2]) or match[2].startswith("#")
        return match[0] if keep else match[1] + moved(match[2]) + match[3]

    return LINK.sub(replace_link, line)


def targets(text: str) -> list[str]:
    """Return every link of a page, in order.

    >>> targets("![p](a.png) and [q](b.md#c)")
    ['a.png', 'b.md#c']
    """
    links: list[str] = []
    for line, is_prose in prose(text):
        if is_prose:
            plain = CODE.sub("", line)
            links += [match[2] for match in LINK.finditer(plain)]
    return links


def anchors(text: str) -> set[str]:
    r"""Return the anchors that a page's headings make, the same on the site and where the repository is shown.

    >>> sorted(anchors("# Ideal and gap\n## `tracekit open`\n## Ideal and gap"))
    ['ideal-and-gap', 'ideal-and-gap-1', 'tracekit-open']
    """
    seen: dict[str, int] = {}
    out = set()
    for line, is_prose in prose(text):
        heading = HEADING.match(line) if is_prose else None
        if heading:
            name = slug(heading[1])
            number = seen.get(name, 0)
            seen[name] = number + 1
            out.add(f"{name}-{number}" if number else name)
    return out


def slug(heading: str) -> str:
    """Return the anchor of a heading.

    >>> slug("As most people record: no `emit_nvtx`")
    'as-most-people-record-no-emit_nvtx'
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-")

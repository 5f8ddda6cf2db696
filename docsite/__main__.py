"""Command ``python -m docsite FOLDER``: write the sources and settings of the site."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from docsite.assemble import assemble

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    """Write the pages to *folder*/docs and the settings to *folder*/zensical.toml."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = assemble(folder / "docs")
    shutil.copy(HERE / "style.css", folder / "docs" / "style.css")
    shutil.copy(HERE / "zensical.toml", folder / "zensical.toml")
    sys.stdout.write(f"{len(pages)} pages in {folder / 'docs'}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/site"))

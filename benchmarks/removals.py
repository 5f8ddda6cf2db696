"""Remove communication kernels from recordings, one at a time, and print what is said differently about waits.

A change counts if the kernel that is missing does not explain it. Ten kernels of each of 18
recordings are 180 runs of the analysis: some minutes on two cores.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests hold what is removed and compared

from tests.perturbations import read_run
from tests.removals import in_ms, try_removals


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="recordings, a folder each")
    parser.add_argument("--count", type=int, default=10, help="kernels to remove of each recording")
    parser.add_argument("--with-launch", action="store_true", help="remove their launches as well")
    options = parser.parse_args()
    removed, changed = 0, 0
    for folder in options.folders:
        for removal in try_removals(
            read_run(folder), options.count, with_launch=options.with_launch
        ):
            removed += 1
            changed += bool(removal.changes)
            kernel = removal.kernel
            for change in removal.changes:
                what = (
                    f"{kernel.label} {kernel.id} of rank {kernel.rank}, {in_ms(kernel.duration_ns)}"
                )
                print(f"{folder.name}: without {what}: {change}", flush=True)
        print(
            f"{folder.name}: {removed} kernels removed so far, {changed} of them change more",
            flush=True,
        )


if __name__ == "__main__":
    main()

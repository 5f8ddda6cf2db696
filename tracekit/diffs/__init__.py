"""What changed between two runs, and which of it is beyond noise.

from tracekit.diffs import diff, read_side
diff(read_side(["old/"], what="first run"), read_side(["new/"], what="second run"))
"""

from tracekit.diffs.changes import diff
from tracekit.diffs.samples import Run, from_analysis
from tracekit.diffs.sides import Side, read_side

__all__ = ["Run", "Side", "diff", "from_analysis", "read_side"]

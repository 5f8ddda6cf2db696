"""Synthetic traces of any schedule, with injected problems of known size, for tests and benchmarks.

>>> from tracekit.pipeline.schedules import generate
>>> from tracekit.synthetic import Recipe, rank_events
>>> recipe = Recipe(generate("zb-h1", pp=4, microbatches=8), jitter=0.02, p2p_ns=50_000)
>>> rank_events(recipe, 3)["kind"].n_unique()
4
"""

from tracekit.synthetic.emit import rank_events
from tracekit.synthetic.files import write_kineto, write_run
from tracekit.synthetic.recipe import EPOCH_NS, Recipe

__all__ = ["EPOCH_NS", "Recipe", "rank_events", "write_kineto", "write_run"]

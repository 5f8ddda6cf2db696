"""Alternatives of attention in one kernel."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.metrics.alternatives.entry import Alternative, SitePrice
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.rates import flop
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.metrics.speeds import MIN_KERNEL_NS

MASKED_ATTENTION = r"^aten::_(cudnn|efficient)_attention_(forward|backward)$"
"""Operators that take a mask or bias, which keeps them from skipping the scores above the diagonal."""
MIN_MASKED_LENGTH = 512
"""Length of sequences from which skipping half of the scores is worth it."""
MAX_TIME_SHARE = 0.8
"""Time of a causal kernel over the present one, above which the mask is not what makes it slow."""


class CausalKernel(Alternative, frozen=True, kw_only=True):
    """Attention of a sequence to itself takes a dense mask, and so computes all scores."""

    change = "causal attention"
    rests_on = "masks of attention are causal, and its kernel skips what they leave out"
    code = "attention"
    case = "mask"
    title = "attention"
    says = (
        "attention takes a dense mask, which keeps it from its causal kernel: {work_ns} of GPU time"
    )
    advises = (
        "if the mask is causal, leave it out and pass `is_causal=True`; for another pattern use "
        "`torch.nn.attention.flex_attention`, which skips blocks that are masked"
    )
    caveat = "What a mask leaves out is not recorded: a mask that keeps most scores gains nothing."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        prices: dict[int, SitePrice] = {}
        types = dict(
            rank.calls.drop_nulls(["shapes", "dtype"]).select("shapes", "dtype").iter_rows()
        )
        masked = rank.sites.filter(pl.col("op").str.contains(MASKED_ATTENTION)).drop_nulls("shapes")
        for site in masked.iter_rows(named=True):
            call_flop = flop(site["op"], site["shapes"])
            peak = rank.speeds.peaks.get(types.get(site["shapes"], ""))
            inputs = Inputs.of(site)
            first = 1 if site["op"].endswith("backward") else 0
            if call_flop is None or peak is None or not _has_square_mask(inputs, first):
                continue
            # What remains is half of the scores, at the rate of causal attention.
            at_peak_ns = call_flop / 2 / peak * site["calls"]
            share = rank.speeds.attention_share
            likely_ns = max(at_peak_ns / share.likely, MIN_KERNEL_NS * site["calls"])
            if likely_ns < MAX_TIME_SHARE * site["ns"]:
                prices[site["site"]] = SitePrice(
                    at_peak_ns / share.high, likely_ns, at_peak_ns / share.low
                )
        yield self.of_sites(rank, prices)


def _has_square_mask(inputs: Inputs, first: int) -> bool:
    """Return whether a mask over all pairs of a sequence's tokens is among the inputs; *first* is that of the query.

    One of each sequence or head is more than an order of tokens.
    """
    query = inputs.size(first)
    key = inputs.size(first + 1)
    if len(query) != 4 or len(key) != 4:
        return False
    # The sequence is the dimension before the heads' size, or that before the heads.
    lengths = {(query[axis], key[axis]) for axis in (1, 2)}
    for index in range(first + 3, len(inputs.sizes)):
        mask = inputs.size(index)
        is_shared = len(mask) >= 2 and count_elements(mask[:-2]) == 1
        is_square = is_shared and mask[-1] == mask[-2] >= MIN_MASKED_LENGTH
        if is_square and (mask[-2], mask[-1]) in lengths and mask[-1] != query[-1]:
            return True
    return False

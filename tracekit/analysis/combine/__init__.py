"""Combination of all ranks: operations matched on one clock, stragglers, spread, memory, and the notices of the run."""

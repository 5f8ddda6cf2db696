"""Pure functions from the labelled table to times: intervals, steps, budget, overlap, waits, bubbles, gaps."""

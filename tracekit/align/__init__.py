"""Alignment across ranks: steps, matched operations, clocks and waits."""

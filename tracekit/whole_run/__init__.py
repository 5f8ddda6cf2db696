"""Lateness, hangs and transfers over a whole run, from recorders that are always on."""

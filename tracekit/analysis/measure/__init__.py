"""Measurement of one rank: its events become small tables, and time by layer, module, annotation or shape."""

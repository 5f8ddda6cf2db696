"""Whether the tests notice: thresholds moved where they are used, rules left out, one at a time (``make mutants``)."""

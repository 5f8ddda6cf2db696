"""Predictions of a run with changes: other schedules, layer splits, numbers of micro-batches, and faster parts.

``pipeline`` predicts other schedules of a compared pipeline and writes the rows of ``--what-if`` (``schedule_rows``).
``predictor`` fits the machine of the run (``machine``, ``messages``) and the times of its ops (``measured_ops``), and
``engine`` simulates the programs of ranks (``rank_programs``) with them. ``changes`` replays the events of a run
(``event_graph``) with other durations.
"""

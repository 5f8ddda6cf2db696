"""Predictions of a run with changes: other schedules, layer splits, numbers of micro-batches, and faster parts.

``pipeline`` predicts other schedules of a compared pipeline and writes the rows of ``--what-if``
(``schedule_rows``). ``predictor`` fits the machine of the run (``machine``, ``messages``) and the
times of its ops (``measured_ops``), and ``engine`` runs the programs of ranks (``rank_programs``)
with them. ``changes`` replays the events of a run (``event_graph``) with other durations.
``constants`` has every figure that was set rather than measured.

Three programs run work on a clock. Each does what the others cannot:

- ``schedules.simulation.run_ops`` runs cells: each starts when what it waits for has ended. Ideals,
  the gap by cause and the slowdown by group use it. Durations are given, so one pass in an order
  fixed beforehand is enough.
- ``engine`` runs another schedule on the machine of a run. A piece slows down while a message is
  under way on its rank, a link carries one message at a time in the order in which they come, and a
  host stands still until a message is there. So durations and order follow from the times
  themselves, and no order can be fixed beforehand. With free messages and hosts it gives the
  answers of ``run_ops`` (a test holds them together), but a piece costs it microseconds in place of
  nanoseconds, and it cannot start a cell before its input has ended, as a replay must.
- ``event_graph`` replays what was recorded: kernels of all streams, launches, and collectives. It
  keeps the order and the unexplained delay of every event, so that a run without a change replays
  to the nanosecond. A cell has no kernels or streams to change, and another schedule has no
  recorded order to keep.
"""

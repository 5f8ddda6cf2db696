"""Host activity of one rank: its events, split once, and the measures on them.

``events`` splits them into calls of the GPU's library, operators and ranges; ``waiting_calls`` finds
the calls that wait; ``idle_activity`` says what the host did while the GPU waited for a launch, and
``time_by_activity`` what it does all the time. The names that tell activities apart are data
(``classify/names.toml``, tables ``host_calls`` and ``host_activities``).
"""

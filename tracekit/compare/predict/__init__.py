"""What another schedule would really take: this run's own cells and messages, run again in another order.

``programs`` says what every rank issues, ``machine`` what this run tells about its machine, ``cells`` how long each op
takes, ``engine`` runs them.
"""

from __future__ import annotations

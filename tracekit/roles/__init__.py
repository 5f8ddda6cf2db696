"""Several processes per rank: roles of a run, weight updates between them, and iterations of an RL loop."""

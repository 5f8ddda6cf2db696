"""Prediction of other schedules from one run: its ops and messages, simulated in another order.

``rank_programs`` lists the steps of every rank, ``machine`` holds the costs of messages, ``measured_ops`` the times of
ops, ``engine`` simulates a program with them, and ``predictor`` fits all of it to a run.
"""

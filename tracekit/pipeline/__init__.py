"""Pipelines: cells reconstructed from events, ideal schedules, and the measured run held against its ideal."""

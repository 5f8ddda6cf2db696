"""Ideal schedules as pictures, pages and text."""

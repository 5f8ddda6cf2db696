"""Schedules drawn as pictures, pages, traces and text, all from one layout."""

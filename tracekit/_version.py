"""The version, alone in a file so that reading it imports nothing."""

__version__ = "0.4.0"

"""Fixtures of traces and of pages."""

from tests.parsers.conftest import event, trace
from tests.report.conftest import analysed, browser, look, pages, window

__all__ = ["analysed", "browser", "event", "look", "pages", "trace", "window"]

"""The MCP server: the tools over stdio, on the official SDK."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracekit._version import __version__
from tracekit.agents.tools import Tools
from tracekit.errors import OptionError, TracekitError

TOOLS = ("analyze", "table", "what_if", "explain", "diff", "doctor", "schedule")
INSTRUCTIONS = (
    "Traces of training runs. Begin with doctor (what can be answered), then analyze (where the step went and why). "
    "Read further rows with table and the handle that analyze returns. Times are nanoseconds."
)


def make_server(folders: Sequence[str | Path]) -> Any:
    """Return the server over *folders*; needs the extra ``mcp``."""
    try:
        module: Any = importlib.import_module("mcp.server")
        errors: Any = importlib.import_module("mcp.server.mcpserver.exceptions")
    except ImportError:
        raise OptionError("mcp needs the MCP SDK", hint="pip install 'tracekit-ml[mcp]'") from None
    tools = Tools(folders)
    server = module.MCPServer("tracekit", version=__version__, instructions=INSTRUCTIONS)
    for name in TOOLS:
        server.tool(name=name)(_with_tool_errors(getattr(tools, name), errors.ToolError))
    return server


def _with_tool_errors(function: Callable[..., Any], tool_error: type[Exception]) -> Callable[..., Any]:
    """Return *function* with errors of tracekit raised as the SDK's tool error, which an agent reads as one line."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TracekitError as error:
            raise tool_error(str(error)) from error

    return call

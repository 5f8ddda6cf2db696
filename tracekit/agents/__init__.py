"""For coding agents: the analysis as tools of an MCP server, read-only and only under the folders it is given."""

"""Results as an HTML page that opens offline."""

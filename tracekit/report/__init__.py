"""Results for people and other programs: one typed view, rendered as terminal text, page, Markdown, plot or trace."""

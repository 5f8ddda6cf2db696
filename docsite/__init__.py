"""Documentation site: the pages of ``docs/`` and pages generated from the code, in one folder to build from.

``python -m docsite FOLDER`` writes the folder; ``make docs`` then builds it. Nothing here is part
of the package.
"""

"""The documentation site: pages of ``docs/`` as they are, and pages made from the code, in one folder to build from.

``python -m docsite FOLDER`` writes the folder; ``make docs`` then builds it. Nothing here is part of the package.
"""

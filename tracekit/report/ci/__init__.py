"""Results of ``gate`` and ``diff`` for continuous integration: wording, JUnit, GitHub Actions, files."""

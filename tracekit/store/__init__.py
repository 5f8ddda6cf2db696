"""Events at rest: the Parquet store, reading sources into events, and the ``Trace`` that ``load`` returns."""

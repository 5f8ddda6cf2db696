"""From paths to results: one driver, and the calls that use it (``load``, ``analyze``, ``ingest``, Dask)."""

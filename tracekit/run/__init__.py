"""The calls that turn paths into results (``load``, ``analyze``, ``ingest``, ``query``, ``watch``) and their driver."""

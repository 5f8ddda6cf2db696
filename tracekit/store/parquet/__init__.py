"""Parquet as the store writes it: standard files, at a nanosecond or two for each value.

From the bottom: ``encodings`` turns values into bytes, ``thrift`` what is noted of them, ``buffers`` finds the values
where polars has them, ``pages`` and ``fields`` make one column of a group of rows, and ``write`` the file.

Arrow's writer takes 12 ns for each value, of columns that hold one value or none too, and 50 ms to be imported: a fifth
of what ``ingest`` took. Here a table's numbers are used as they are, and what repeats is found in one pass.
"""

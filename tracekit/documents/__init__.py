"""JSON and TOML documents that tracekit writes or reads, one module for each, as ``msgspec`` types.

Fields are the keys, in the order in which they are written. A key keeps its name and meaning as
long as the number of its format stays the same; new keys may be added at any time, so keys that a
type does not know are skipped when a file is read. Null means unknown or absent; no number stands
for it. A field whose default is ``UNSET`` is a key that is only sometimes present. The strings
under the fields are the descriptions in ``docs/schemas`` and on the site.
"""

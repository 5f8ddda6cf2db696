"""The manifest of an archive of traces that Perfetto merges, version 1 of its format (Perfetto 58 and newer).

Its reference is https://perfetto.dev/docs/reference/perfetto-manifest.
"""

from msgspec import UNSET, Struct, UnsetType


class ManifestMachine(Struct, frozen=True):
    """Machine to which a file's processes and threads belong."""

    name: str
    """Shown with its processes; files with the same name share processes with the same number."""


class ReferenceClock(Struct, frozen=True):
    """Clock of another file."""

    file: str
    """The other file's path in the archive."""
    clock: str | UnsetType = UNSET
    """Name of its clock; left out for files that have none of their own, such as JSON."""


class ClockRelation(Struct, frozen=True, kw_only=True):
    """Relation of a file's clock to that of another file."""

    clock: str | UnsetType = UNSET
    """Name of the file's own clock; left out for files that have none."""
    sync_to: ReferenceClock
    """The clock that it is related to."""
    offset_ns: int
    """When the file's clock shows T, the other one shows T + offset_ns."""


class ManifestFile(Struct, frozen=True, kw_only=True):
    """One trace of the archive."""

    path: str
    """Its path in the archive."""
    machine: ManifestMachine
    """The machine of its processes."""
    clocks: ClockRelation | UnsetType = UNSET
    """How its clock relates to the first file's; left out for that file."""


class Manifest(Struct, frozen=True, kw_only=True):
    """The traces of an archive and how their clocks relate."""

    version: int = 1
    """Version of the format."""
    files: tuple[ManifestFile, ...]
    """The traces."""
    attributes: dict[str, str | int]
    """What else is known of the archive."""


class ManifestDocument(Struct, frozen=True):
    """The whole file; Perfetto knows it by its only key."""

    perfetto_manifest: Manifest
    """The manifest."""

"""Words of the reports for code words such as causes, phases and kinds, read from ``words.toml``."""

from collections.abc import Mapping
from pathlib import Path

import msgspec


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words by code word; the comments in ``words.toml`` say what each table holds."""

    exposure_causes: Mapping[str, str]
    exposure_meanings: Mapping[str, str]
    idle_causes: Mapping[str, str]
    host_activities: Mapping[str, str]
    path_holders: Mapping[str, str]
    by_titles: Mapping[str, str]
    role_kinds: Mapping[str, str]
    phases: Mapping[str, str]
    update_causes: Mapping[str, str]
    update_remedies: Mapping[str, str]
    definitions: Mapping[str, str]
    schedule_definitions: Mapping[str, str]


WORDS = msgspec.toml.decode(Path(__file__).with_name("words.toml").read_bytes(), type=Words)

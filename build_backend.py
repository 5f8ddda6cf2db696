"""Build backend: setuptools, plus a C compiler from the package index where the machine has none."""

from __future__ import annotations

import shutil
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


ZIGLANG = "ziglang==0.15.1"
"""The C compiler that is fetched where the machine has none: one version, so that no later one is
run unseen."""


def has_c_compiler() -> bool:
    """Return whether the compiler that Python was built with, or the usual one, can be run."""
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(configured) is not None


def _with_compiler(requirements: list[str]) -> list[str]:
    return requirements if has_c_compiler() else [*requirements, ZIGLANG]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what building a wheel needs beyond ``build-system.requires``."""
    return _with_compiler(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what an editable installation needs beyond ``build-system.requires``."""
    return _with_compiler(build_meta.get_requires_for_build_editable(config_settings))

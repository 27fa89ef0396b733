"""The libraries of the extra `report`, imported when a report is written and not before."""

from __future__ import annotations

import importlib
from types import ModuleType

from equipoise.errors import InputError

__all__ = ["need"]


def need(module: str) -> ModuleType:
    """Import a library that only reports use.

    Raises
    ------
    InputError
        It is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"a report needs {module.partition('.')[0]}, which is not installed",
            fix="install the extra: pip install 'equipoise[report]'",
        ) from error

"""The libraries that tests are written with; a word on what to install where they are missing."""

from __future__ import annotations

try:
    import pytest
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "equipoise.testing needs hypothesis and pytest: pip install hypothesis pytest"
    ) from error

__all__ = ["HealthCheck", "Phase", "given", "pytest", "settings", "st"]

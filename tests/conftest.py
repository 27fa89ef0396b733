"""Fixtures for every room."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def find_shared() -> Path | None:
    """The folder of public data beside the checkout, if it is there."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    folder = find_shared()
    if folder is None:
        pytest.skip("needs the public traces and configurations in ../shared beside the checkout")
    return folder

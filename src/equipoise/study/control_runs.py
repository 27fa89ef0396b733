"""Runs of a study of control kept on disk as they are made, so that an interrupted one goes on where it was."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from equipoise._replacing import replacing
from equipoise.control.run import ControlRun
from equipoise.study.kept import file_stamps, made_folder, package_digest

__all__ = ["KeptRuns"]


class KeptRuns:
    """A folder with a JSON file for each finished run, named by a digest of everything it depends on.

    Parameters
    ----------
    folder : Path
        Made if it is not there.

    Raises
    ------
    InputError
        The folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = made_folder(folder)

    def find(self, settings: dict[str, Any]) -> ControlRun | None:
        """The run of these settings, if it was kept; a damaged file is as good as none."""
        try:
            kept = json.loads(self._path(settings).read_bytes())["run"]
            # JSON has no NaN: none stands for it
            return msgspec.convert({k: math.nan if v is None else v for k, v in kept.items()}, ControlRun)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
            return None

    def keep(self, settings: dict[str, Any], run: ControlRun) -> None:
        """Keep a run."""
        values = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(run).items()}
        text = json.dumps({"settings": settings, "run": values}, indent=1)
        with replacing(self._path(settings)) as file:
            file.write(text.encode())

    def _path(self, settings: dict[str, Any]) -> Path:
        whole = settings | _surroundings(str(settings.get("trace", "")))
        return self.folder / f"{sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]}.json"


@cache
def _surroundings(trace: str) -> dict[str, Any]:
    return {"version": version("equipoise"), "package": package_digest(), "files": file_stamps(Path(trace))}

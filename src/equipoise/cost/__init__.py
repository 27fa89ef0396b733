"""Step costs: what a decode step costs, its ideal, and where the prices come from.

`load` takes a name or a file, `derive` counts a model's multiply-adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.cost.builtin import load, names
    from equipoise.cost.derivation import derive
    from equipoise.cost.files import from_dict, from_toml, save, to_dict, to_toml
    from equipoise.cost.step_cost import Saturation, StepCost, Term

__all__ = [
    "Saturation",
    "StepCost",
    "Term",
    "derive",
    "from_dict",
    "from_toml",
    "load",
    "names",
    "save",
    "to_dict",
    "to_toml",
]

__getattr__ = lazy(
    __name__,
    {
        "builtin": (
            "load",
            "names",
        ),
        "derivation": ("derive",),
        "files": (
            "from_dict",
            "from_toml",
            "save",
            "to_dict",
            "to_toml",
        ),
        "step_cost": (
            "Saturation",
            "StepCost",
            "Term",
        ),
    },
)

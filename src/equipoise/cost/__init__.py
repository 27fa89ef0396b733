"""Step costs: what a decode step costs, its ideal, and where the prices come from.

`load` takes a name or a file, `derive` counts a model's multiply-adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.cost.attended import pairs, saturated_pairs
    from equipoise.cost.builtin import load, names
    from equipoise.cost.derivation import derive
    from equipoise.cost.files import from_dict, from_toml, save, to_dict, to_toml
    from equipoise.cost.prefill import PrefillCost, PrefillTerm
    from equipoise.cost.prefill_derivation import derive_prefill
    from equipoise.cost.step_cost import Saturation, StepCost, Term

__all__ = [
    "PrefillCost",
    "PrefillTerm",
    "Saturation",
    "StepCost",
    "Term",
    "derive",
    "derive_prefill",
    "from_dict",
    "from_toml",
    "load",
    "names",
    "pairs",
    "saturated_pairs",
    "save",
    "to_dict",
    "to_toml",
]

__getattr__ = lazy(
    __name__,
    {
        "attended": (
            "pairs",
            "saturated_pairs",
        ),
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
        "prefill": (
            "PrefillCost",
            "PrefillTerm",
        ),
        "prefill_derivation": ("derive_prefill",),
        "step_cost": (
            "Saturation",
            "StepCost",
            "Term",
        ),
    },
)

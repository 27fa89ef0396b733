"""Step costs: what a decode step costs, its ideal, and where the prices come from.

`load` takes a name or a file, `derive` counts a model's multiply-adds.
"""

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

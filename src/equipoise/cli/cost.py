"""`equipoise cost`: derive, fit, show, compare and list step costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json
from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.cost import StepCost
    from equipoise.models import ModelShape

__all__ = ["app"]

app = App(name="cost", help="Derive, fit, show, compare and list step costs.")
app.command(
    "equipoise.cli.cost_fit:fit",
    name="fit",
    help="Fit a step cost to an engine's log or a measured table, with error bars.",
)
app.command(
    "equipoise.cli.cost_compare:compare",
    name="compare",
    help="Put step costs side by side, and say which policy question their difference changes.",
)


@app.command
def derive(
    *,
    model: str | None = None,
    config: Path | None = None,
    layers: Path | None = None,
    kind: Literal["v1", "v2", "both"] = "both",
    b0: Whole = 8,
    saturate: Annotated[bool, Parameter(negative="")] = False,
    us_per_unit: float | None = None,
    output: Path | None = None,
    as_json: Json = False,
) -> None:
    """Count a model's attention work into V1- and V2-style step costs and a prefill cost.

    Give the model in one of three ways: a preset by name, a Hugging Face config.json, or layers written by
    hand.

    Parameters
    ----------
    model
        A preset such as glm-5.3; 'equipoise cost list' names them.
    config
        A Hugging Face config.json, or the folder that holds it.
    layers
        Layers described by hand in TOML; 'equipoise cost layers-example' prints a template.
    kind
        v1: all work linear in the batch; v2: projections frozen at B0 tokens.
    b0
        Tokens at which v2 freezes the projections.
    saturate
        Price bounded reads (top-k, windows) by min(context, bound) instead of taking every request past its
        bounds.
    us_per_unit
        Microseconds per request, the clock of timed replay. Default 74: GLM-5 layers measured on H200.
    output
        Write the cost to this TOML file; needs --kind v1 or v2.
    """
    from equipoise.cost import derive as derive_cost
    from equipoise.cost import save
    from equipoise.cost.derivation import GLM5_H200_US_PER_REQUEST, KINDS
    from equipoise.cost.summary import derivation_summary

    if output is not None and kind == "both":
        raise InputError("two costs for one file", where="--output", fix="choose --kind v1 or --kind v2")
    shape = _shape(model, config, layers)
    clock = GLM5_H200_US_PER_REQUEST if us_per_unit is None else us_per_unit
    costs: dict[str, StepCost] = {
        k: derive_cost(shape, k, b0, saturate=saturate, us_per_unit=clock)
        for k in KINDS
        if kind in (k, "both")
    }
    if output is not None and kind != "both":
        save(costs[kind], output)
        _note(f"wrote {output}")
    for note in shape.notes:
        _note(note)
    if as_json:
        _print_json(derivation_summary(shape, costs))
    else:
        from equipoise.cli.cost_tables import print_derivation

        print_derivation(shape, costs, b0)


@app.command
def show(cost: str, /, *, as_json: Json = False) -> None:
    """Print a step cost: its formula, prices and exchange rate.

    Parameters
    ----------
    cost
        A preset (v1, v2, h200-vllm-glm-5 ...; equipoise cost list) or a TOML or JSON file.
    """
    from equipoise.cost import load
    from equipoise.cost.summary import costs_summary

    loaded: StepCost = load(cost)
    if as_json:
        _print_json(costs_summary({loaded.name: loaded}))
    else:
        from equipoise.cli.cost_tables import print_cost

        print_cost(loaded)


@app.command(name="list")
def list_presets(*, as_json: Json = False) -> None:
    """Name the costs and models that come with the package."""
    from equipoise import cost, models

    costs = {name: cost.load(name) for name in cost.names()}
    shapes = {name: models.load(name) for name in models.names()}
    if as_json:
        _print_json(
            {
                "schema": "equipoise.presets/1",
                "costs": {name: c.formula() for name, c in costs.items()},
                "models": {name: s.name for name, s in shapes.items()},
            }
        )
    else:
        from equipoise.cli.cost_tables import print_presets

        print_presets(costs, shapes)


@app.command(name="layers-example")
def layers_example() -> None:
    """Print a commented template for layers described by hand; it derives as it stands."""
    from equipoise.models.by_hand import EXAMPLE

    print(EXAMPLE, end="")


def _shape(model: str | None, config: Path | None, layers: Path | None) -> ModelShape:
    from equipoise import models

    given = [f"--{n}" for n, v in (("model", model), ("config", config), ("layers", layers)) if v is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} together" if given else "no model"
        raise InputError(
            what, where="cost derive", fix="give one of --model NAME, --config PATH, --layers FILE"
        )
    if config is not None:
        return models.from_config(config)
    if layers is not None:
        return models.from_layers(layers)
    return models.load(model or "")


def _print_json(values: object) -> None:
    import json

    print(json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False))


def _note(text: str) -> None:
    import sys

    print(f"note: {text}", file=sys.stderr)

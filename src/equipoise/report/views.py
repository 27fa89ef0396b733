"""What of a comparison is looked at together: costs side by side, a parameter that was swept, the finalists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.study import Cell, Comparison, Setting

__all__ = [
    "Scene",
    "Sweep",
    "cheapest",
    "finalists",
    "first_scenes",
    "group_cell",
    "logarithmic",
    "most_even",
    "optima_words",
    "scenes",
    "settings_by_trace",
    "sweeps",
    "tied",
]

MOST_FINALISTS = 6
LEAST_SWEPT = 3
"""Values of a parameter that make a curve."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Settings that differ in nothing but the cost."""

    settings: tuple[Setting, ...]

    @property
    def first(self) -> Setting:
        """The setting with the first cost."""
        return self.settings[0]

    @property
    def words(self) -> str:
        """The scene in a few words, the cost left out."""
        setting = self.first
        pool = setting.pool
        size = f"DP{pool.ranks}" if pool.instances == 1 else f"{pool.instances} x DP{pool.ranks}"
        load = f"{setting.concurrency:,} requests" if setting.mode == "saturated" else setting.mode
        if setting.deployment_name is not None:
            size = f"{setting.deployment_name} ({size})"
        parts = [setting.trace, size, load]
        if pool.groups > 1:
            parts.append(f"{pool.groups} groups by {setting.group_policy}")
        elif setting.grouped:
            parts.append(f"instances by {setting.group_policy}")
        return ", ".join(parts)


def scenes(comparison: Comparison) -> list[Scene]:
    """All scenes, in the order of the plan."""
    found: dict[tuple[str, str | None, int, str], list[Setting]] = {}
    for s in comparison.settings():
        found.setdefault((s.trace, s.deployment_name, s.pool.groups, s.group_policy), []).append(s)
    return [Scene(tuple(settings)) for settings in found.values()]


def first_scenes(comparison: Comparison) -> list[Scene]:
    """The first scene of every trace and deployment: the first number of groups, the first way to choose one."""
    found: dict[tuple[str, str | None], Scene] = {}
    for scene in scenes(comparison):
        found.setdefault((scene.first.trace, scene.first.deployment_name), scene)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Sweep:
    """One numeric parameter of one policy at several values, everything else fixed.

    Parameters
    ----------
    policy, parameter : str
    fixed : str
        The other parameters in words, where the same parameter was swept more than once; empty otherwise.
    points : sequence of (float, Cell)
        In ascending order of the parameter.
    """

    policy: str
    parameter: str
    fixed: str
    points: tuple[tuple[float, Cell], ...]

    @property
    def values(self) -> list[float]:
        """The values of the parameter."""
        return [v for v, _ in self.points]

    @property
    def cells(self) -> list[Cell]:
        """The cells, in the same order."""
        return [c for _, c in self.points]


def sweeps(cells: Sequence[Cell]) -> list[Sweep]:
    """Every parameter of the cells of one setting that takes three or more values with the others fixed."""
    found: dict[tuple[str, str], dict[str, dict[float, Cell]]] = {}
    for cell in cells:
        for name, value in cell.policy.params.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            others = ", ".join(f"{k}={_show(v)}" for k, v in cell.policy.params.items() if k != name)
            found.setdefault((cell.policy.name, name), {}).setdefault(others, {})[float(value)] = cell
    result = []
    for (policy, parameter), curves in found.items():
        curves = {others: points for others, points in curves.items() if len(points) >= LEAST_SWEPT}
        for others, points in curves.items():
            fixed = others if len(curves) > 1 else ""
            result.append(Sweep(policy, parameter, fixed, tuple(sorted(points.items(), key=lambda p: p[0]))))
    return result


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cheapest(sweep: Sweep) -> tuple[float, Cell]:
    """The point with the least excess."""
    return min(sweep.points, key=lambda p: p[1].excess.mean)


def most_even(sweep: Sweep) -> tuple[float, Cell]:
    """The point with the most even tokens: the least max/mean of C."""
    return min(sweep.points, key=lambda p: p[1].mean("max_over_mean_context"))


def optima_words(curves: Sequence[Sweep]) -> str:
    """Where a parameter is cheapest under each cost, and where the tokens are most even, in words."""
    by_value: dict[str, list[str]] = {}
    for sweep in curves:
        by_value.setdefault(f"{cheapest(sweep)[0]:g}", []).append(sweep.cells[0].setting.cost.name)
    optima = ", ".join(f"{value} under {_and(names)}" for value, names in by_value.items())
    even = " or ".join(dict.fromkeys(f"{most_even(s)[0]:g}" for s in curves))
    return f"Cheapest {curves[0].parameter}: {optima}; most even tokens: {even}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def finalists(comparison: Comparison, setting: Setting, most: int = MOST_FINALISTS) -> list[Cell]:
    """The baseline, the best, and the best of every other family, in the order of the plan."""
    cells = comparison.of(setting)
    baseline, best = comparison.baseline(setting), comparison.best(setting)
    chosen = [baseline] if baseline is best else [baseline, best]
    families: dict[str, Cell] = {}
    for cell in cells:
        leader = families.get(cell.policy.name)
        if leader is None or cell.excess.mean < leader.excess.mean:
            families[cell.policy.name] = cell
    taken = {c.policy.name for c in chosen}
    rest = [c for name, c in families.items() if name not in taken]
    rest.sort(key=lambda c: c.excess.mean)
    chosen += rest[: most - len(chosen)]
    return [c for c in cells if c in chosen]


def logarithmic(values: Sequence[float]) -> bool:
    """Whether an axis of these values should be logarithmic."""
    return min(values) > 0 and max(values) / min(values) > 20


def settings_by_trace(comparison: Comparison) -> list[list[Setting]]:
    """All settings of each trace and deployment."""
    found: dict[tuple[str, str | None], list[Setting]] = {}
    for setting in comparison.settings():
        found.setdefault((setting.trace, setting.deployment_name), []).append(setting)
    return list(found.values())


def group_cell(
    comparison: Comparison, settings: Sequence[Setting], label: str, groups: int, way: str
) -> Cell:
    """The cell of a policy at a number of groups; with one group there is no choice, so every way starts there."""
    setting = next(
        s for s in settings if s.pool.groups == groups and (not s.grouped or s.group_policy == way)
    )
    return next(c for c in comparison.of(setting) if c.policy.label == label)


def tied(comparison: Comparison, cell: Cell) -> bool:
    """Whether a cell that is not the best is not told apart from the best either."""
    best = comparison.best(cell.setting)
    return cell is not best and comparison.difference(cell, best).excess.covers_zero

"""How the results of scripts/engine_control_study.py are laid out as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markers import replace

__all__ = ["TABLES", "render"]

Found = Sequence[dict[str, Any]]
SCRIPT = "engine_control_study.py"

WORDS = {
    "argmax": "`argmax`: every rank for itself, by a start-up profile",
    "argmax_own": "`argmax_own`: by its own true time",
    "argmax_waits": "`argmax_waits`: by a profile corrected with measured steps",
    "padded": "`padded`: `argmax`, and all run the largest demand's graph",
    "padded_filled": "`padded_filled`: the same, drafts in place of padding",
    "none": "no draft at all",
    "fixed,1": "one draft for all",
    "fixed,2": "two drafts for all",
    "fixed,3": "three drafts for all",
    "fixed,5": "five drafts for all",
    "equipoise": "`equipoise`: all ranks together",
}


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(found: dict[str, float | None], scale: float, digits: int, sign: str = "") -> str:
    """Mean and half width."""
    mean, high = found["mean"], found["high"]
    if mean is None:
        return "-"
    half = f" ± {scale * (high - mean):.{digits}f}" if high is not None else ""
    return f"{scale * mean:{sign}.{digits}f}{half}"


def kilo(cell: dict[str, Any]) -> str:
    return span(cell["tokens_per_s"], 1e-3, 1)


def gain(cell: dict[str, Any]) -> str:
    return span(cell["gain"], 100, 1, "+")


def mean(cell: dict[str, Any], key: str, scale: float = 1, digits: int = 2) -> str:
    value = cell[key]["mean"]
    return "-" if value is None else f"{scale * value:.{digits}f}"


def of(row: dict[str, Any], strategy: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in row["control"]["cells"] if c["strategy"] == strategy)
    return found


def strategies(found: Found) -> str:
    """All strategies of each row, one table a row."""
    parts = []
    for row in found:
        cells = row["control"]["cells"]
        first = cells[0]["strategy"]
        body = [
            [
                WORDS.get(c["strategy"], f"`{c['strategy']}`"),
                kilo(c),
                gain(c) if c["strategy"] != first else "",
                mean(c, "verified_per_request"),
                mean(c, "accepted_per_request"),
                span(c["accepted_drafts_per_s"], 1e-3, 1),
                mean(c, "bubble_share", 100, 1),
                span(c["slack_turned"], 100, 0),
                mean(c, "slack_filled", 100, 0),
            ]
            for c in cells
        ]
        head = ["who decides", "thousand tokens/s", f"against `{first}`, %", "verified", "accepted",
                "drafts accepted, thousand/s", "waiting, %", "gone, %", "filled, %"]  # fmt: skip
        parts.append(f"*{row['label'].capitalize()}:*\n\n{table(head, body)}")
    return "\n\n".join(parts)


def gains(title: str) -> Callable[[Found], str]:
    """A row for each setting: tokens a second of all strategies, and the last one's gain over the first."""

    def show(found: Found) -> str:
        if not found:
            return ""
        names = [c["strategy"] for c in found[0]["control"]["cells"]]
        body = []
        for row in found:
            cells = [of(row, name) for name in names]
            body.append([f"{row['label']}", *(kilo(c) for c in cells), gain(cells[-1])])
        head = [title, *(f"`{n}`" for n in names), f"`{names[-1]}` above `{names[0]}`, %"]
        return table(head, body)

    return show


def bar(found: Found) -> str:
    """What became of the waiting that other strategies leave."""
    body = []
    for row in found:
        cell = row["control"]["cells"][0]
        gone, filled = cell["slack_turned"], cell["slack_filled"]
        body.append([WORDS[row["label"]], span(gone, 100, 0), span(filled, 100, 0)])
    return table(["waiting that would be left by", "of it gone, %", "filled with drafts, %"], body)


def placement(found: Found) -> str:
    names = ("fixed,3", "equipoise")
    body = []
    for row in found:
        control = row["control"]
        cells = [of(row, name) for name in names]
        body.append(
            [
                str(control["per_rank"]),
                f"`{control['cells'][0]['policy']}`",
                *(kilo(c) for c in cells),
                mean(cells[-1], "bubble_share", 100, 1),
                mean(cells[-1], "turnovers", 1, 1),
            ]
        )
    return table(["a rank", "placed by", *(f"`{n}`" for n in names), "waiting left, %", "turnovers"], body)


def means(found: Found) -> str:
    body = []
    for row in found:
        for c in row["control"]["cells"]:
            share = c["least_share_run"]
            body.append(
                [
                    f"`{c['policy']}`",
                    f"`{c['strategy']}`",
                    kilo(c),
                    gain(c) if "+" in c["strategy"] else "",
                    mean(c, "bubble_share", 100, 1),
                    mean(c, "sat_out_share", 100, 2),
                    str(c["longest_pause_steps"]),
                    str(c["longest_wait_steps"]),
                    "-" if share is None else f"{100 * share:.0f}",
                ]
            )
    head = ["placed by", "who decides", "thousand tokens/s", "gain, %", "waiting, %", "sat out, %", "longest pause",
            "longest wait", "least share run, %"]  # fmt: skip
    return table(head, body)


def bounds(found: Found) -> str:
    body = []
    for row in found:
        control, cell = row["control"], of(row, "equipoise+pauses")
        body.append(
            [
                str(control["pause_steps"]),
                str(control["rest_steps"]),
                gain(cell),
                mean(cell, "sat_out_share", 100, 2),
                str(cell["longest_pause_steps"]),
                f"{100 * cell['least_share_run']:.0f}" if cell["least_share_run"] is not None else "-",
            ]
        )
    return table(
        ["pause at most", "then run", "gain, %", "sat out, %", "longest pause", "least share run, %"], body
    )


TABLES: dict[str, Callable[[Found], str]] = {
    "headline": strategies,
    "bar": bar,
    "placement": placement,
    "long": placement,
    "ece": gains("error of the survivals, %"),
    "horizon": gains("steps old"),
    "batch": gains("requests a rank"),
    "means": means,
    "bounds": bounds,
    "graphs": gains("graphs"),
    "ep": gains("a query token"),
    "reads": strategies,
}


def render(page: str, found: dict[str, list[dict[str, Any]]], parts: Sequence[str]) -> str:
    """The page with the tables of these parts."""
    for part in parts:
        rows = found[part]
        plans = {(r["control"]["seeds"], r["control"]["steps"], r["control"]["warmup_steps"]) for r in rows}
        runs = " or ".join(
            f"{seeds} seeds of {steps} steps after {warm}" for seeds, steps, warm in sorted(plans)
        )
        dates = " to ".join(sorted({r["date"] for r in rows}))
        note = f"{runs}, 95 % intervals; `python scripts/{SCRIPT} {part}`, {dates}."
        page = replace(page, f"engine control, {part}", SCRIPT, f"{TABLES[part](rows)}\n\n{note}")
    return page

"""What is said of a live run when it ends; the analysis says more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from equipoise.live.about import About
from equipoise.live.rows import ANSWERED, read_table, table_path
from equipoise.report.tables import plain_table

__all__ = ["SCHEMA", "print_runs", "runs_document"]

SCHEMA = "equipoise.live-runs/1"


def summary(folder: Path, about: About) -> list[dict[str, Any]]:
    """One row a run: what became of its requests, and how long they took in the middle."""
    requests = read_table(table_path(folder, "requests"), "requests")
    ok = pl.col("outcome").is_in([str(o) for o in ANSWERED])
    ttft_ms = ((pl.col("first_token_s") - pl.col("intended_s")) * 1e3).filter(ok)
    tpot_ms = ((pl.col("finished_s") - pl.col("first_token_s")) * 1e3 / (pl.col("output_tokens") - 1)).filter(
        ok & (pl.col("output_tokens") > 1)
    )
    found = requests.group_by("order").agg(
        answered=ok.sum(), ttft_ms_p50=ttft_ms.median(), tpot_ms_mean=tpot_ms.mean()
    )
    by_order = {row["order"]: row for row in found.iter_rows(named=True)}
    rows = []
    for one in about.runs:
        row = by_order.get(one.order, {})
        rows.append(
            {
                "order": one.order,
                "policy": one.policy,
                "repeat": one.repeat,
                "state": one.state,
                "requests": one.requests,
                "answered": row.get("answered", 0),
                "failed": one.failed,
                "ttft_ms_p50": row.get("ttft_ms_p50"),
                "tpot_ms_mean": row.get("tpot_ms_mean"),
                "wall_s": one.wall_s,
                "late_p99_ms": one.late_p99_ms,
                "notes": list(one.notes),
            }
        )
    return rows


def runs_document(folder: Path, about: About) -> dict[str, Any]:
    """The same as JSON has it."""
    return {
        "schema": SCHEMA,
        "state": about.state,
        "folder": str(folder),
        "runs": summary(folder, about),
        "notes": about.notes,
    }


def print_runs(folder: Path, about: About, console: Console) -> None:
    """The same as a table."""
    table = plain_table()
    table.add_column("run", justify="right")
    table.add_column("policy", no_wrap=True)
    for name in ("repeat", "answered", "failed", "TTFT p50 ms", "TPOT ms", "late p99 ms"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for row in summary(folder, about):
        table.add_row(
            str(row["order"] + 1),
            Text(row["policy"]),
            str(row["repeat"] + 1),
            str(row["answered"]),
            str(row["failed"]),
            _ms(row["ttft_ms_p50"]),
            _ms(row["tpot_ms_mean"]),
            _ms(row["late_p99_ms"]),
            row["state"],
        )
    console.print(table)
    console.print(f"{folder}/ holds it all: equipoise live analyse {folder}", highlight=False, soft_wrap=True)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

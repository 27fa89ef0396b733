"""Tables and description of a live run: what is written is read back, and what is damaged is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from equipoise.calibrate.readers import read as read_steps
from equipoise.errors import EquipoiseError, InputError
from equipoise.live.about import About, EngineAbout, InstanceAbout, Machine, RunAbout, TraceAbout, read_about
from equipoise.live.rows import TABLES, empty, read_table, table_path, write_table


def about(**changes: Any) -> About:
    made: dict[str, Any] = {
        "schema": "equipoise.live/1",
        "equipoise": "1",
        "state": "running",
        "started_at": "2026-11-30T08:00:00Z",
        "engine": EngineAbout(
            kind="vllm",
            model="m",
            version=None,
            instances=(InstanceAbout(name="a", url="http://a", ranks=2),),
            prompts="ids",
        ),
        "trace": TraceAbout(name="t", source="", digest="0", cut="", requests=1),
        "mode": "open",
        "scale": 1.0,
        "concurrency": None,
        "policies": ("least_batch",),
        "repeats": 1,
        "first_seed": 0,
        "prefixes": False,
        "ttft_slo_ms": None,
        "tpot_slo_ms": None,
        "cost": None,
        "warmup_requests": 0,
        "drain_timeout_s": 60.0,
        "timeout_s": 60.0,
        "scrape_period_s": 0.25,
        "on_failure": "stop",
        "machine": Machine(cores=2, cpu="", platform="", python=""),
        "runs": [RunAbout(order=0, policy="least_batch", repeat=0, seed=0)],
    }
    return About(**{**made, **changes})


def test_run_json_comes_back(tmp_path: Path) -> None:
    one = about(notes=["a note"])
    one.write(tmp_path)
    assert read_about(tmp_path) == one
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "equipoise.live/9"}', b"[" * 100_000]
)
def test_a_damaged_run_json_is_an_input_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(InputError):
        read_about(tmp_path)


@pytest.mark.parametrize("table", TABLES)
def test_tables_come_back(tmp_path: Path, table: str) -> None:
    values = {pl.Int32: 1, pl.Int64: 2, pl.Float64: 0.5, pl.String: "x", pl.List: [1.5, 2.5]}
    row = {name: [values[dtype.base_type()]] for name, dtype in TABLES[table].items()}
    frame = pl.DataFrame(row, schema=dict(TABLES[table]))
    path = table_path(tmp_path, table)
    write_table(path, table, frame)
    assert read_table(path, table).equals(frame)
    write_table(path, table, empty(table))
    assert read_table(path, table).is_empty()


def test_bad_tables_are_input_errors(tmp_path: Path) -> None:
    path = table_path(tmp_path, "scrapes")
    with pytest.raises(InputError, match="No such file"):
        read_table(path, "scrapes")
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match="readable Parquet"):
        read_table(path, "scrapes")
    empty("scrapes").drop("running").write_parquet(path)
    with pytest.raises(InputError, match="'running'"):
        read_table(path, "scrapes")
    pl.DataFrame({**{n: [None] for n in TABLES["scrapes"]}, "running": ["many"]}).write_parquet(path)
    with pytest.raises(InputError, match="'running'"):
        read_table(path, "scrapes")


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EquipoiseError, match="cannot be written"):
        write_table(tmp_path / "file" / "steps.parquet", "steps", empty("steps"))


def test_steps_are_read_by_the_calibration(tmp_path: Path) -> None:
    steps = [0, 0, 1, 1, 2, 2]
    frame = pl.DataFrame(
        {
            "instance": [0] * 6,
            "step": steps,
            "rank": [0, 1] * 3,
            "clock_s": [s * 0.1 for s in steps],
            "batch": [1, 2, 3, 4, 5, 6],
            "context_tokens": [10, 20, 30, 40, 50, 60],
            "prefill_tokens": [0] * 6,
            "time_ms": [9.0, 9.0, 10.0, 10.0, 11.0, 11.0],
            "source": ["probe"] * 6,
        },
        schema=dict(TABLES["steps"]),
    )
    path = table_path(tmp_path, "steps")
    write_table(path, "steps", frame)
    (records,) = read_steps([path])
    assert records.batch.tolist() == [1, 2, 3, 4, 5, 6]
    assert records.time_s.tolist() == pytest.approx([0.009, 0.009, 0.010, 0.010, 0.011, 0.011])
    assert records.step_starts().tolist() == [0, 2, 4, 6]

"""AIConfigurator's tables: groups, contexts, units; the whole public table."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from reader_cases import dropped, write

from equipoise.calibrate.readers import aic, aiconfigurator_tables, detect, read
from equipoise.errors import CalibrationError

HEADER = (
    "system,table,framework,version,op_name,kernel_source,model,num_heads,tp_size,compress_ratio,"
    "batch_size,isl,context_len,latency_ms\n"
)
FULL = "h200_sxm,dsa_generation_module,VLLM,0.24.0,dsa_generation_module,default,zai-org/GLM-5,64,1,,"
SKIP = FULL.replace("dsa_generation_module,default", "dsa_generation_module_skip_indexer,default")


def test_groups_rows_and_units(tmp_path: Path) -> None:
    text = HEADER + f"{FULL}4,1,2048,0.25\n{SKIP}4,1,2048,0.125\n{FULL}8,2,4096,0.5\n"
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert detect(path) == "aic"
    full, skip = read(path)
    assert full.labels["layer"] == "dsa_generation_module"
    assert skip.labels["layer"] == "dsa_generation_module_skip_indexer"
    assert full.labels["num_heads"] == 64
    assert "compress_ratio" not in full.labels
    assert full.batch.tolist() == [4, 8]
    assert full.context_tokens.tolist() == [8192, 32768]
    assert full.query_tokens.tolist() == [4, 16]
    assert full.context_variance.tolist() == [0, 0]
    assert full.time_s.tolist() == [0.25e-3, 0.5e-3]
    assert full.line.tolist() == [2, 4]
    assert full.flags.tolist() == [0, 0]
    assert full.step.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("table", "context"), [("dsa_generation_module", 2048), ("generation_attention", 2049)]
)
def test_parquet_of_the_package(tmp_path: Path, table: str, context: int) -> None:
    folder = tmp_path / "systems" / "data" / "h200_sxm" / "attention" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    path = folder / f"{table}_perf.parquet"
    columns = {"framework": ["VLLM"], "version": ["0.24.0"], "op_name": ["x"], "num_heads": [64]}
    rest = {"batch_size": [2], "isl": [1], "step": [2048], "latency": [0.5]}
    pl.DataFrame(columns | rest).write_parquet(path)
    assert detect(path) == "aic"
    (records,) = read(path)
    assert records.labels["system"] == "h200_sxm"
    assert records.labels["table"] == table
    assert records.context_tokens.tolist() == [2 * context]
    assert records.time_s.tolist() == [0.5e-3]


def test_a_group_names_only_the_files_it_is_from(tmp_path: Path) -> None:
    a = write(tmp_path / "a.csv", HEADER + f"{FULL}4,1,2048,0.25\n")
    b = write(tmp_path / "b.csv", HEADER + f"{SKIP}4,1,2048,0.25\n{FULL}8,1,2048,0.25\n")
    full, skip = read([a, b])
    assert full.source == f"{a}, {b}"
    assert skip.where(0) == f"{b}:2"


def test_points_that_are_none_are_dropped(tmp_path: Path) -> None:
    rows = ["4,1,2048,", "4,1,2048,-1", "4,1,2048,nan", "x,1,2048,1", "4,1,2048,0", "4,1,2048,1"]
    text = HEADER + "".join(f"{FULL}{row}\n" for row in rows)
    (records,) = read(write(tmp_path / "t.csv", text))
    assert records.line.tolist() == [7]
    assert sum(dropped(records).values()) == 5
    assert dropped(records)["the time is not a number"] == 2


def test_a_line_with_too_many_fields_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", HEADER + f"{FULL}4,1,2048,1\n{FULL}4,1,2048,1,9\n{FULL}8,1,2048,1\n")
    with pytest.raises(CalibrationError, match=r"t\.csv:3: .*is not a row"):
        read(path)
    (records,) = read(path, skip_bad=1)
    assert records.line.tolist() == [2, 4]
    assert dropped(records) == {"bad line": 1}


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b\n1,2\n")
    with pytest.raises(CalibrationError, match="not a decode table"):
        read(path, "aic")


def test_the_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aic.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CalibrationError, match="pip install aiconfigurator-core"):
        aiconfigurator_tables()


@pytest.mark.shared
def test_the_public_table(shared_dir: Path) -> None:
    path = shared_dir / "calib" / "aic-decode-attention" / "aic_decode_attention.csv.gz"
    groups = read(path)
    assert sum(map(len, groups)) == 63_422
    # An oracle of its own: Python's csv module, one row at a time.
    import csv

    sums: Counter[tuple[str, ...]] = Counter()
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[k] for k in ("system", "table", "framework", "version", "op_name", "model"))
            sums[key] += int(row["batch_size"]) * int(row["context_len"]) * float(row["latency_ms"])  # type: ignore[assignment]
    ours: Counter[tuple[str, ...]] = Counter()
    for g in groups:
        key = tuple(g.labels[k] for k in ("system", "table", "framework", "version", "op_name", "model"))
        ours[key] += float((g.context_tokens * g.time_s).sum() * 1e3)  # type: ignore[assignment]
        assert len(g)
        assert not g.dropped
        assert (g.batch > 0).all()
        assert np.isfinite(g.time_s).all()
    assert ours.keys() == sums.keys()
    assert all(math.isclose(ours[k], sums[k], rel_tol=1e-9) for k in sums)

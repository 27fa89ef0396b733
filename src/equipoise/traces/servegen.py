"""ServeGen client pools: a production day as clients, each with its own arrival process and length tables.

Xiang et al., "ServeGen: Workload Characterization and Generation of LLM Serving in Production", arXiv 2505.09999.
The pools come from github.com/alibaba/ServeGen, here in a slim form of two CSV files a model:
``<model>_clients_arrival.csv`` (rate and Gamma or Weibull inter-arrival times of every client in windows of 10 minutes)
and ``<model>_clients_lengths_quantiles.csv`` (quantiles of input and output lengths in windows of 6 hours).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import TraceError, nearest
from equipoise.traces.readers.kinds import COUNT, DURATION_S, Field, Identity, Number
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.rows import Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.reorder import check_count, check_positive
from equipoise.traces.streams import generator
from equipoise.traces.trace import MAX_TOKENS, Trace
from equipoise.types import Floats, Ints

__all__ = ["DAY_S", "Pool", "generate", "load_pool", "models"]

DAY_S = 86_400.0
WINDOW_S = 600.0
MAX_WINDOW_REQUESTS = 100_000_000
"""A busier window of 10 minutes is taken for a mistake in the rates."""
MAX_WINDOWS = 100_000
"""Two years of windows."""
ARRIVAL, LENGTHS = "_clients_arrival.csv", "_clients_lengths_quantiles.csv"
LEVELS = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
"""Percentiles in the length tables."""

_POSITIVE = Number(1e-9, 1e9)
_LENGTH = Number(0, MAX_TOKENS)
ARRIVAL_SCHEMA = Schema(
    (
        Field("client", "client", COUNT),
        Field("t_start_s", "start_s", DURATION_S),
        Field("rate_rps", "rate_per_s", Number(0, 1e6)),
        Field("pattern", "pattern", Identity()),
        Field("shape", "shape", _POSITIVE),
        Field("scale", "scale_s", _POSITIVE),
    )
)
LENGTHS_SCHEMA = Schema(
    (
        Field("client", "client", COUNT),
        Field("t_start_s", "start_s", DURATION_S),
        Field("field", "field", Identity()),
        *(Field(f"q{p:g}", f"q{p:g}", _LENGTH) for p in LEVELS),
    )
)


@dataclass(frozen=True, slots=True)
class Pool:
    """The clients of one model, one row a client and window.

    Parameters
    ----------
    model : str
    client, start_s, rate_per_s, shape, scale_s : arrays [rows]
        Ordered by window, then client.
    gamma : bool[rows]
        Gamma inter-arrival times; else Weibull.
    input_row, output_row : int64[rows]
        Row of the length tables that holds for this client and window.
    quantiles : float64[tables, 18]
        Lengths at `LEVELS`, in tokens.
    left_out : float
        Share of the pool's requests whose clients have no length tables; they are not generated.
    """

    model: str
    client: Ints
    start_s: Floats
    rate_per_s: Floats
    shape: Floats
    scale_s: Floats
    gamma: NDArray[np.bool_]
    input_row: Ints
    output_row: Ints
    quantiles: Floats
    left_out: float


def models(folder: Path) -> list[str]:
    """Names of the models whose pair of files lies in a folder."""
    return sorted({p.name.partition(ARRIVAL)[0] for p in folder.iterdir() if ARRIVAL in p.name})


def load_pool(path: str | Path, model: str | None = None, *, problems: Problems | None = None) -> Pool:
    """Load a pool.

    Parameters
    ----------
    path : str or Path
        The folder, or either file of the pair.
    model : str, optional
        Which model of the folder; needed where there are several.
    problems : Problems, optional
        Books bad lines; without it the first one raises.

    Raises
    ------
    TraceError
        No such pair of files, an unknown model, bad lines.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    if not path.is_dir():
        ending = next((e for e in (ARRIVAL, LENGTHS) if e in path.name), None)
        if ending is None:
            raise TraceError(
                "is no file of a ServeGen pair", where=str(path), fix=f"names end in {ARRIVAL} or {LENGTHS}"
            )
        model = path.name.partition(ending)[0]
    known = models(folder) if folder.is_dir() else []
    if model is None and len(known) == 1:
        model = known[0]
    if model not in known:
        what = f"there is no model {model!r}" if model else f"holds {len(known)} models"
        raise TraceError(
            what, where=str(folder), fix=nearest(model or "", known) if known else f"no *{ARRIVAL} here"
        )
    problems = problems or Problems(folder)
    arrival = read_table(_file(folder, model, ARRIVAL), ARRIVAL_SCHEMA, problems)
    lengths = read_table(_file(folder, model, LENGTHS), LENGTHS_SCHEMA, problems)
    pattern = arrival["pattern"].to_numpy()
    unknown = sorted(set(pattern) - {"Gamma", "Weibull"})
    if unknown:
        raise TraceError(
            f"the pattern {unknown[0]!r} is unknown", where=str(folder), fix="expected Gamma or Weibull"
        )
    quantiles = np.maximum.accumulate(np.stack([lengths[f"q{p:g}"] for p in LEVELS], axis=1), axis=1)
    field = lengths["field"].to_numpy()
    rows = [
        _tables(arrival["client"], arrival["start_s"], lengths["client"], lengths["start_s"], field == name)
        for name in ("input_tokens", "output_tokens")
    ]
    usable = (rows[0] >= 0) & (rows[1] >= 0) & (arrival["rate_per_s"] > 0)
    total = float(arrival["rate_per_s"].sum())
    if not usable.any():
        raise TraceError(
            "no client has both arrivals and lengths", where=str(folder), fix="check the pair of files"
        )
    order = np.flatnonzero(usable)[np.lexsort((arrival["client"][usable], arrival["start_s"][usable]))]
    return Pool(
        model=model,
        client=arrival["client"][order],
        start_s=arrival["start_s"][order],
        rate_per_s=arrival["rate_per_s"][order],
        shape=arrival["shape"][order],
        scale_s=arrival["scale_s"][order],
        gamma=(pattern == "Gamma")[order],
        input_row=rows[0][order],
        output_row=rows[1][order],
        quantiles=quantiles,
        left_out=1.0 - float(arrival["rate_per_s"][order].sum()) / total,
    )


def generate(
    path: str | Path,
    model: str | None = None,
    requests: int | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
    *,
    duration_s: float | None = None,
) -> Trace:
    """Draw a trace from a pool.

    In every window a client sends rate x 600 s requests (rounded up or down at random); the gaps between them are
    drawn from its Gamma or Weibull law. Where these gaps fill less than the window, the burst begins anywhere in it;
    where they fill more, they are compressed into it: shape and rate of the tables both hold. Input and output lengths
    are drawn independently of each other by inverse interpolation of the quantiles (ServeGen's own sampler shares one
    uniform number between them, which correlates them perfectly). After the pool's last window it begins again.

    Parameters
    ----------
    path, model
        As in `load_pool`.
    requests : int, optional
        How many; asking for more keeps the first ones.
    seed : int
    rate_scale : float
        Times as many requests, with gaps as many times shorter.
    duration_s : float, optional
        Seconds to cover; one day where neither this nor ``requests`` is given.

    Raises
    ------
    TraceError
        As `load_pool`, and for sizes that are not positive.
    """
    pool = load_pool(path, model)
    return draw(pool, requests, seed, rate_scale, duration_s)


def draw(
    pool: Pool,
    requests: int | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
    duration_s: float | None = None,
) -> Trace:
    """`generate` from a pool already loaded."""
    check_positive("rate_scale", rate_scale)
    if requests is not None:
        check_count("requests", requests)
    if duration_s is not None:
        check_positive("duration_s", duration_s)
    if requests is None and duration_s is None:
        duration_s = DAY_S
    _check_length(pool, requests, rate_scale, duration_s)
    parts, got = [], 0
    for begin_s, rows, index in _windows(pool):
        if (requests is not None and got >= requests) or (duration_s is not None and begin_s >= duration_s):
            break
        part = _window(pool, rows, begin_s, index, seed, rate_scale)
        if duration_s is not None:
            part = tuple(column[part[0] < duration_s] for column in part)
        parts.append(part)
        got += len(part[0])
    arrival_s, context, output = (np.concatenate(columns)[:requests] for columns in zip(*parts, strict=True))
    if not len(arrival_s):
        raise TraceError(
            "no request falls into this time", where=f"ServeGen {pool.model}", fix="a longer duration_s"
        )
    source = f"ServeGen client pool {pool.model}, seed {seed}, rate x {rate_scale:g}"
    if pool.left_out > 0:
        source += f"; clients without length tables left out ({pool.left_out:.0%} of the requests)"
    return Trace.from_columns(
        f"servegen-{pool.model}", arrival_s - arrival_s[0], context, output, source=source
    )


def _check_length(pool: Pool, requests: int | None, rate_scale: float, duration_s: float | None) -> None:
    """Refuse what would take years of the pool's time."""
    a_window = float(pool.rate_per_s.sum()) / len(np.unique(pool.start_s)) * WINDOW_S * rate_scale
    windows = (duration_s or np.inf) / WINDOW_S
    if requests is not None:
        windows = min(windows, requests / a_window)
    if windows > MAX_WINDOWS:
        raise TraceError(
            f"rate_scale = {rate_scale:g} gives {a_window:.3g} requests in 10 minutes",
            where=f"ServeGen {pool.model}",
            fix=f"raise it or ask for less: at most {MAX_WINDOWS:,} windows of 10 minutes are drawn",
        )


def _windows(pool: Pool) -> Iterator[tuple[float, slice, int]]:
    """Begin in seconds, rows and running number of every window, again and again."""
    starts, first = np.unique(pool.start_s, return_index=True)
    ends = np.r_[first[1:], len(pool.start_s)]
    lap_s = math.ceil((starts[-1] + WINDOW_S - starts[0]) / WINDOW_S) * WINDOW_S
    lap = index = 0
    while True:
        for start_s, begin, end in zip(starts - starts[0], first, ends, strict=True):
            yield float(start_s) + lap * lap_s, slice(int(begin), int(end)), index
            index += 1
        lap += 1


def _window(
    pool: Pool, rows: slice, begin_s: float, index: int, seed: int, rate_scale: float
) -> tuple[NDArray[Any], ...]:
    """Arrivals, input and output lengths of one window, in order of arrival."""
    rng = generator(seed, "servegen arrivals", index)
    expected = pool.rate_per_s[rows] * WINDOW_S * rate_scale
    if expected.sum() > MAX_WINDOW_REQUESTS:
        raise TraceError(
            f"the pool sends {expected.sum():.3g} requests in 10 minutes",
            where=f"ServeGen {pool.model}",
            fix=f"at most {MAX_WINDOW_REQUESTS:,} are drawn; lower rate_scale or check rate_rps",
        )
    count = np.floor(expected + rng.random(len(expected))).astype(np.int64)
    client = np.repeat(np.arange(len(count)), count)
    n = len(client)
    shape, gamma = pool.shape[rows][client], pool.gamma[rows][client]
    gap_s = np.empty(n)
    gap_s[gamma] = rng.standard_gamma(shape[gamma])
    gap_s[~gamma] = rng.weibull(shape[~gamma])
    gap_s *= pool.scale_s[rows][client] / rate_scale
    gap_s = np.minimum(gap_s, 1e12)
    sent = np.flatnonzero(count)
    first = (np.cumsum(count) - count)[sent]
    total_s = np.cumsum(gap_s)
    since_first_s = np.maximum(total_s - np.repeat(total_s[first], count[sent]), 0.0)
    span_s = np.zeros(len(count))
    if n:
        span_s[sent] = np.maximum.reduceat(since_first_s, first)
    squeeze = np.minimum(1.0, WINDOW_S / np.maximum(span_s, 1e-300))
    begin = rng.random(len(count)) * np.maximum(WINDOW_S - span_s, 0.0)
    arrival_s = begin_s + begin[client] + since_first_s * squeeze[client]
    order = np.argsort(arrival_s, kind="stable")
    lengths = []
    for name, table in (("input", pool.input_row), ("output", pool.output_row)):
        u = generator(seed, f"servegen {name}", index).random(n)
        lengths.append(_inverse(pool.quantiles, table[rows][client], u)[order])
    return arrival_s[order], *lengths


def _inverse(quantiles: Floats, row: Ints, u: Floats) -> Ints:
    """Lengths at probability u, linear between the tabulated quantiles, at least 1 token."""
    levels = np.array(LEVELS) / 100
    k = np.minimum(np.searchsorted(levels, u, side="right") - 1, len(levels) - 2)
    low, high = quantiles[row, k], quantiles[row, k + 1]
    share = (u - levels[k]) / (levels[k + 1] - levels[k])
    lengths: Ints = np.maximum(np.rint(low + (high - low) * share), 1).astype(np.int64)
    return lengths


def _tables(
    client: Ints, start_s: Floats, table_client: Ints, table_start_s: Floats, of: NDArray[np.bool_]
) -> Ints:
    """Row of the table that holds for each client and time: its last one begun, else its first; -1 for none."""
    candidates = np.flatnonzero(of)
    order = candidates[np.lexsort((table_start_s[candidates], table_client[candidates]))]
    result = np.full(len(client), -1, dtype=np.int64)
    if not len(order):
        return result
    sorted_client, sorted_start = table_client[order], table_start_s[order]
    first = np.searchsorted(sorted_client, client, side="left")
    last = np.searchsorted(sorted_client, client, side="right")
    for name in np.unique(client[last > first]):
        mine = client == name
        lo, hi = first[mine][0], last[mine][0]
        at = np.searchsorted(sorted_start[lo:hi], start_s[mine], side="right") - 1
        result[mine] = order[lo + np.maximum(at, 0)]
    return result


def _file(folder: Path, model: str, ending: str) -> Path:
    for zipped in ("", ".gz", ".zst"):
        path = folder / f"{model}{ending}{zipped}"
        if path.is_file():
            return path
    raise TraceError(f"there is no {model}{ending}", where=str(folder), fix="a pool is a pair of files")

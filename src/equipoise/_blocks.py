"""Blocks of neighbours drawn again: what is near in time is not independent, so it is drawn together."""

from __future__ import annotations

import numpy as np

from equipoise.types import Floats

__all__ = ["block_length", "draw_blocks"]


def block_length(residual: Floats) -> int:
    """Rows a block should have, from how long they remember (Politis and White 2004, circular blocks).

    Parameters
    ----------
    residual : float64[n]
        In the order of time.

    Returns
    -------
    int
        1 where neighbours are independent.
    """
    n = len(residual)
    if n < 32:
        return 1
    x = np.clip(residual, *np.quantile(residual, [0.01, 0.99]))
    x = x - x.mean()
    size = 1 << int(2 * n - 1).bit_length()
    power = np.abs(np.fft.rfft(x, size)) ** 2
    cover = np.fft.irfft(power, size)[: n // 2] / n
    if cover[0] <= 0:
        return 1
    rho = cover / cover[0]
    quiet, needed = 2 * np.sqrt(np.log10(n) / n), max(5, int(np.sqrt(np.log10(n))))
    small = np.abs(rho[1:]) < quiet
    runs = np.convolve(small, np.ones(needed), "valid") == needed
    last = int(np.argmax(runs)) if runs.any() else n // 4
    if last == 0:
        return 1
    width = min(2 * last, n // 4)
    lags = np.arange(1, width + 1)
    taper = np.clip(2 * (1 - lags / width), 0, 1)
    g = 2 * float((taper * lags * cover[lags]).sum())
    spectrum = float(cover[0] + 2 * (taper * cover[lags]).sum())
    if spectrum <= 0:
        return 1
    length = (2 * g**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, max(1, n // 10)))


def draw_blocks(rng: np.random.Generator, replicates: int, units: int, span: int) -> Floats:
    """How often each unit is in each replicate: circular blocks of `span` units, as many units as there are.

    Parameters
    ----------
    rng : numpy.random.Generator
    replicates, units, span : int

    Returns
    -------
    float64[replicates, units]
        A replicate holds ``ceil(units / span)`` whole blocks: more units than there are where `span` is no divisor.
    """
    blocks = max(1, -(-units // span))
    counts = np.empty((replicates, units))
    for r in range(replicates):
        first = rng.integers(0, units, blocks)
        here = np.bincount(first, minlength=units).astype(np.float64)
        if span > 1:
            run = np.concatenate([here[-(span - 1) :], here])
            here = np.convolve(run, np.ones(span), "valid")
        counts[r] = here
    return counts

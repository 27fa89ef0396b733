"""How long answers are, learnt from those that have ended: the last 1,024 of them, nothing else.

`learn` notes a length; `renew` sorts them whenever a 32nd more have ended. Tables by age, in 512 cells up to the
longest, say how many steps a request that has run so long is still expected to run within a horizon, or how likely it
is to be there some steps later. Ages are rounded down to a cell. Of a request older than any answer seen nothing is
known, and as long as nothing has ended nothing is known of any: such requests are taken to stay.

The predictor is the empirical one of BalanceRoute (arXiv 2605.06113) and of Fast-Phi; neither uses the prompt.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.types import Floats, Ints

__all__ = ["CELLS", "SIZE", "cell_width", "learn", "lengths_known", "renew", "survivors", "time_left"]

WINDOW, CELLS = 1024, 512
SEEN, KNOWN, RING = 0, 1, 2
"""Positions: answers so far, answers when the sorted lengths were last renewed, lengths in order of arrival."""
SORTED = RING + WINDOW
SIZE = SORTED + WINDOW
"""How much of ``memory.ints`` it takes."""


@jitable
def learn(history: Ints, output_tokens: int) -> None:
    """Note the length of an answer that has ended; the oldest of more than 1,024 is forgotten."""
    history[RING + history[SEEN] % WINDOW] = output_tokens
    history[SEEN] += 1


@jitable
def renew(history: Ints) -> bool:
    """Sort what has been learnt, if by now it is a 32nd more than when that was last done; whether it was done."""
    known = min(history[KNOWN], WINDOW)
    if history[SEEN] - history[KNOWN] < 1 + known // 32:
        return False
    history[KNOWN] = history[SEEN]
    known = min(history[KNOWN], WINDOW)
    history[SORTED : SORTED + known] = np.sort(history[RING : RING + known])
    return True


@jitable
def lengths_known(history: Ints) -> Ints:
    """The lengths, ascending, as they were when they were last renewed."""
    return history[SORTED : SORTED + min(history[KNOWN], WINDOW)]


@jitable
def cell_width(lengths: Ints) -> int:
    """Steps of a cell: the last one lies beyond all lengths."""
    return 1 if len(lengths) == 0 else lengths[-1] // (CELLS - 1) + 1


@jitable
def time_left(lengths: Ints, horizon: int, table: Floats) -> None:
    """Fill in, for each age, the steps a request is expected to run on within the horizon.

    Of those that were longer than the age: (1 - p) * horizon + p * m, where p is the share that ended within the
    horizon and m the mean number of steps until they did.
    """
    width = cell_width(lengths)
    n = len(lengths)
    longer, within, steps = 0, 0, 0  # lengths[longer:] > age, lengths[:within] <= age + horizon
    for cell in range(CELLS):
        age = cell * width
        while within < n and lengths[within] <= age + horizon:
            steps += lengths[within]
            within += 1
        while longer < n and lengths[longer] <= age:
            steps -= lengths[longer]
            longer += 1
        if longer == n:
            table[cell] = horizon
        else:
            ending = within - longer
            table[cell] = (horizon * (n - within) + steps - ending * age) / (n - longer)


@jitable
def survivors(lengths: Ints, ahead: int, table: Floats) -> None:
    """Fill in, for each age, the share of the requests of that age that still run so many steps later."""
    width = cell_width(lengths)
    n, longer, later = len(lengths), 0, 0
    for cell in range(CELLS):
        age = cell * width
        while longer < n and lengths[longer] <= age:
            longer += 1
        while later < n and lengths[later] <= age + ahead:
            later += 1
        table[cell] = 1.0 if longer == n else (n - later) / (n - longer)

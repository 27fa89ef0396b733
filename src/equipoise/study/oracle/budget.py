"""How long a search may take."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.errors import InputError

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to search an instance: until either is used up.

    Parameters
    ----------
    seconds : float, optional
        By the clock: results then depend on the machine.
    candidates : int, optional
        Exchanges looked at: the same everywhere.

    Raises
    ------
    InputError
        Neither given, or out of bounds.
    """

    seconds: float | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.candidates is None:
            raise InputError("a search without a budget", fix="give seconds or candidates")
        if self.seconds is not None and not 0 < self.seconds <= 1e6:
            raise InputError(f"budget of {self.seconds} seconds", fix="must be above 0 and at most 1e6")
        if self.candidates is not None and not 1 <= self.candidates <= 10**15:
            raise InputError(f"budget of {self.candidates} candidates", fix="must be from 1 to 1e15")

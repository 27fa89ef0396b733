"""Typed reading of tables that people and publishers write: every mistake names key, file, bound and fix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from equipoise.errors import InputError, ModelError, nearest

__all__ = ["LARGEST", "LARGEST_PRICE", "Reader"]

LARGEST: Final = 1_000_000_000
"""Largest width, head count or expert count believed."""
LARGEST_PRICE: Final = 1e30
"""Largest price, weight or clock believed; products of them with any load stay far from infinity."""

_MISSING: Final = object()


class Reader:
    """One table (a JSON object or a TOML table), read key by key.

    Parameters
    ----------
    values : mapping
    where : str
        File and place in it, for messages.
    error : type, optional
        The error raised: `ModelError` for models, `CostError` for costs.
    """

    def __init__(self, values: Mapping[str, Any], where: str, error: type[InputError] = ModelError) -> None:
        self.values = values
        self.where = where
        self.error = error
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether a key is there and not null."""
        return self.values.get(name) is not None

    def raw(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first of these keys that is there and not null, else (first name, None)."""
        self.used.update(names)
        for name in names:
            if self.has(name):
                return name, self.values[name]
        return names[0], None

    def fail(self, what: str, fix: str | None = None) -> InputError:
        """Make the error for this table."""
        return self.error(what, where=self.where, fix=fix)

    def integer(self, *names: str, low: int = 1, high: int = LARGEST, default: Any = _MISSING) -> int:
        """Whole number under the first of these names, within bounds."""
        name, value = self.raw(*names)
        if value is None:
            if default is _MISSING:
                raise self._missing(names, f"a whole number from {low} to {high}")
            return int(default)
        return self._whole(name, value, low, high)

    def optional_integer(self, *names: str, low: int = 1, high: int = LARGEST) -> int | None:
        """Whole number, or None where the key is missing or null."""
        name, value = self.raw(*names)
        return None if value is None else self._whole(name, value, low, high)

    def number(self, name: str, default: Any = _MISSING) -> float:
        """Number from 0 to `LARGEST_PRICE`."""
        _, value = self.raw(name)
        if value is None:
            if default is _MISSING:
                raise self._missing((name,), "a number of 0 or more")
            return float(default)
        return self._price(name, value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """List of numbers from 0 to `LARGEST_PRICE`; empty where the key is missing."""
        values = self._list(name)
        return tuple(self._price(f"{name}[{i}]", v) for i, v in enumerate(values or ()))

    def text(self, name: str, default: Any = _MISSING) -> str:
        """One line of text."""
        _, value = self.raw(name)
        if value is None:
            if default is _MISSING:
                raise self._missing((name,), "text")
            return str(default)
        if not isinstance(value, str):
            raise self.fail(f"{name} = {_short(value)}", "must be text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Truth value."""
        _, value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{name} = {_short(value)}", "must be true or false")
        return value

    def integers(self, name: str, low: int = 0, high: int = LARGEST) -> tuple[int, ...] | None:
        """List of whole numbers within bounds, None where the key is missing or null."""
        values = self._list(name)
        return (
            None
            if values is None
            else tuple(self._whole(f"{name}[{i}]", v, low, high) for i, v in enumerate(values))
        )

    def texts(self, name: str) -> tuple[str, ...] | None:
        """List of texts, None where the key is missing or null."""
        values = self._list(name)
        for i, value in enumerate(values or ()):
            if not isinstance(value, str):
                raise self.fail(f"{name}[{i}] = {_short(value)}", "must be text")
        return None if values is None else tuple(values)

    def table(self, name: str) -> Reader | None:
        """Table inside this one, None where the key is missing or null."""
        _, value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(f"{name} = {_short(value)}", "must be a table of keys and values")
        return Reader(value, f"{self.where}, {name}", self.error)

    def tables(self, name: str) -> list[Reader]:
        """List of tables inside this one; empty where the key is missing."""
        values = self._list(name) or ()
        for i, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise self.fail(f"{name}[{i}] = {_short(value)}", "must be a table of keys and values")
        return [Reader(value, f"{self.where}, {name}[{i}]", self.error) for i, value in enumerate(values)]

    def no_others(self) -> None:
        """Refuse keys that nobody has read, naming the nearest that would have been."""
        for name in self.values:
            if name not in self.used:
                raise self.fail(f"unknown key {name!r}", nearest(str(name), self.used))

    def _list(self, name: str) -> Sequence[Any] | None:
        _, value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.fail(f"{name} = {_short(value)}", "must be a list")
        return value

    def _whole(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(f"{name} = {_short(value)}", f"must be a whole number from {low} to {high}")
        return value

    def _price(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_PRICE:
            raise self.fail(f"{name} = {_short(value)}", f"must be a number from 0 to {LARGEST_PRICE:g}")
        return float(value)

    def _missing(self, names: Sequence[str], expected: str) -> InputError:
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return self.fail(f"{names[0]}{also} is missing", f"it must be {expected}")


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

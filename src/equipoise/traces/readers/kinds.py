"""What a column may hold: each kind parses one value exactly, and a whole column at once.

The exact form (`Kind.text`, `Kind.json`) is the definition and says what is wrong. The column form (`Kind.column`)
is the same thing for speed: it answers only when every value is beyond doubt, else the reader goes line by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.traces.trace import MAX_TOKENS

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "ARRIVAL_S",
    "COUNT",
    "DURATION_S",
    "INDEX",
    "INT64",
    "OUTPUT",
    "TOKENS",
    "Blocks",
    "Field",
    "Identity",
    "Kind",
    "Number",
    "WallClock",
    "arrival",
    "session_numbers",
]

INT64 = (-(2**63), 2**63 - 1)
MAX_ARRIVAL_S = 1e12
"""Latest time believed, in seconds: thirty thousand years."""


class Kind:
    """One kind of value; ``expected`` completes the sentence "expected ..."."""

    expected: str
    dtype: type[np.generic] | None
    """Element type of a column of these; None for text."""

    def text(self, raw: str) -> Any:
        """Parse a CSV field; ValueError says what is wrong with it."""
        raise NotImplementedError

    def json(self, raw: object) -> Any:
        """Take a JSON value; ValueError says what is wrong with it."""
        raise NotImplementedError

    def column(self, series: pl.Series) -> Any | None:
        """Parse a column of text (null = nothing there), None where a value is in doubt."""
        raise NotImplementedError

    def values(self, raw: list[Any]) -> Any | None:
        """Take a column of decoded JSON values, None where a value is in doubt."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number from ``low`` to ``high``, both included.

    Parameters
    ----------
    low, high : float
    whole : bool
        Only integers; ``12.0`` is one.
    empty : float, optional
        What nothing, or null, stands for; without it nothing is an error.
    divide : float
        Units a second (1e3 for a column of milliseconds), for times.
    unit : str
        For the message.
    """

    low: float
    high: float
    whole: bool = False
    empty: float | None = None
    divide: float = 1.0
    unit: str = ""

    @property
    def expected(self) -> str:  # type: ignore[override]
        """Bounds and unit, in words."""
        what = "a whole number" if self.whole else "a number"
        unit = f" {self.unit}" if self.unit else ""
        return f"{what}{unit} from {self.low:.15g} to {self.high:.15g}"

    @property
    def dtype(self) -> type[np.generic]:  # type: ignore[override]
        """Integers where only whole numbers are allowed."""
        return np.int64 if self.whole else np.float64

    def text(self, raw: str) -> float:
        """See `Kind.text`."""
        stripped = raw.strip()
        if not stripped:
            return self._nothing()
        if "_" in stripped or not stripped.isascii():
            raise ValueError("is not a number")
        try:
            value = float(stripped)
        except ValueError:
            raise ValueError("is not a number") from None
        return self._checked(value)

    def json(self, raw: object) -> float:
        """See `Kind.json`."""
        if raw is None:
            return self._nothing()
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError("is not a number")
        return self._checked(raw)

    def column(self, series: pl.Series) -> NDArray[Any] | None:
        """See `Kind.column`."""
        import polars as pl

        numbers = series.cast(pl.Float64, strict=False)
        if numbers.null_count():
            if self.empty is None or numbers.null_count() > series.null_count():
                return None
            numbers = numbers.fill_null(self.empty * self.divide)
        return self._column(numbers.to_numpy())

    def values(self, raw: list[Any]) -> NDArray[Any] | None:
        """See `Kind.values`."""
        if self.empty is not None:
            empty = self.empty * self.divide
            raw = [empty if value is None else value for value in raw]
        try:
            return self._column(np.array(raw, dtype=np.float64))
        except (OverflowError, TypeError, ValueError):
            return None

    def _column(self, numbers: NDArray[np.float64]) -> NDArray[Any] | None:
        ok = (numbers >= self.low) & (numbers <= self.high)  # false for NaN
        if self.whole:
            ok &= numbers == np.floor(numbers)
        if not ok.all():
            return None
        return numbers.astype(np.int64) if self.whole else numbers / self.divide

    def _nothing(self) -> float:
        if self.empty is None:
            raise ValueError("is not a number")
        return self.empty

    def _checked(self, value: float) -> float:
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("is not finite")
        if value < self.low:
            raise ValueError(f"is below {self.low:.15g}")
        if value > self.high:
            raise ValueError(f"is above {self.high:.15g}")
        if self.whole:
            if value != int(value):
                raise ValueError("is not a whole number")
            return int(value)
        return value / self.divide


@dataclass(frozen=True, slots=True)
class WallClock(Kind):
    """A date and time of day, to the nanosecond; without a zone it is taken as UTC."""

    expected = "a time like 2023-11-16 18:17:03.9799600"
    dtype = np.int64

    def text(self, raw: str) -> int:
        """See `Kind.text`."""
        match = _WALL_CLOCK.fullmatch(raw.strip())
        if not match:
            raise ValueError("is not a date and time")
        date, clock, fraction, zone = match.groups()
        try:
            moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_zone(zone))
        except ValueError:
            raise ValueError("is not a date and time") from None
        whole_s = (moment - _EPOCH) // timedelta(seconds=1)
        nanoseconds = whole_s * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
        if not 0 <= nanoseconds < _END_NS:
            raise ValueError("is outside the years 1970 to 2199")
        return nanoseconds

    def json(self, raw: object) -> int:
        """See `Kind.json`."""
        if not isinstance(raw, str):
            raise ValueError("is not a date and time")
        return self.text(raw)

    def column(self, series: pl.Series) -> NDArray[np.int64] | None:
        """See `Kind.column`."""
        import polars as pl

        try:
            text = series.str.replace("T", " ", literal=True)
            zoned = "%:z" if bool(text.head(1).str.contains(r"[+-]\d\d:\d\d$").any()) else ""
            times = text.str.to_datetime(f"%Y-%m-%d %H:%M:%S%.f{zoned}", time_unit="ns", strict=False)
        except pl.exceptions.PolarsError:
            return None
        if times.null_count() or not bool(text.str.contains(_PLAIN_CLOCK).all()):
            return None
        return times.dt.timestamp("ns").to_numpy()

    def values(self, raw: list[Any]) -> NDArray[np.int64] | None:
        """See `Kind.values`."""
        import polars as pl

        return self.column(pl.Series(raw, dtype=pl.String)) if all(isinstance(v, str) for v in raw) else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_NS = (datetime(2200, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) * 1_000_000_000
_WALL_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
# What both forms read alike: years well inside the bounds whatever the zone, no leap second, at most nine digits.
_PLAIN_CLOCK = (
    r"^(?:197[1-9]|19[89]\d|20\d\d)-\d\d-\d\d [0-2]\d:\d\d:[0-5]\d(?:\.\d{1,9})?(?:[+-]\d\d:\d\d)?$"
)


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text.replace(":", "")
    offset = timedelta(hours=int(digits[1:3]), minutes=int(digits[3:5]))
    return timezone(-offset if text[0] == "-" else offset)


@dataclass(frozen=True, slots=True)
class Identity(Kind):
    """A name or number that says which requests belong together; nothing = none."""

    expected = "a name or a whole number"
    dtype = None

    def text(self, raw: str) -> str:
        """See `Kind.text`."""
        return raw.strip()

    def json(self, raw: object) -> str:
        """See `Kind.json`."""
        if raw is None:
            return ""
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError("is not a name")
        if isinstance(raw, int) and not INT64[0] <= raw <= INT64[1]:
            raise ValueError("does not fit 64 bits")
        return str(raw).strip()

    def column(self, series: pl.Series) -> pl.Series:
        """See `Kind.column`."""
        return series.fill_null("").str.strip_chars(_PYTHON_SPACES)

    def values(self, raw: list[Any]) -> pl.Series | None:
        """See `Kind.values`."""
        import polars as pl

        try:
            return pl.Series([self.json(value) for value in raw], dtype=pl.String)
        except ValueError:
            return None


_PYTHON_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


@dataclass(frozen=True, slots=True)
class Blocks(Kind):
    """A JSON list of prefix-block ids: any 64-bit integers, equal ids meaning equal content."""

    expected = "a list of 64-bit whole numbers"
    dtype = None

    def text(self, raw: str) -> NDArray[np.int64]:
        """See `Kind.text`."""
        raise ValueError("is not a list")

    def json(self, raw: object) -> NDArray[np.int64]:
        """See `Kind.json`."""
        if raw is None:
            return np.zeros(0, dtype=np.int64)
        if not isinstance(raw, list):
            raise ValueError("is not a list")
        for value in raw:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError("holds something that is not a whole number")
            if not INT64[0] <= value < 2**64:
                raise ValueError("holds a number that does not fit 64 bits")
        return block_ids(raw)


def block_ids(raw: list[int]) -> NDArray[np.int64]:
    """Ids as int64; unsigned 64-bit hashes wrap, since only equality counts."""
    try:
        return np.array(raw, dtype=np.int64)
    except OverflowError:
        return np.array([value - 2**64 if value > INT64[1] else value for value in raw], dtype=np.int64)


TOKENS = Number(1, MAX_TOKENS, whole=True, unit="of tokens")
OUTPUT = Number(0, MAX_TOKENS, whole=True, unit="of tokens")
"""Output of a format in which 0 means that nothing was generated: such requests are dropped and counted."""
COUNT = Number(0, 2**53, whole=True)
ARRIVAL_S = Number(-MAX_ARRIVAL_S, MAX_ARRIVAL_S, unit="of seconds")
DURATION_S = Number(0, MAX_ARRIVAL_S, empty=0.0, unit="of seconds")
INDEX = Number(0, 2**31 - 1, whole=True)


def arrival(per_second: float, unit: str) -> Number:
    """Arrival times in another unit, stored in seconds."""
    bound = MAX_ARRIVAL_S * per_second
    return Number(-bound, bound, divide=per_second, unit=f"of {unit}")


@dataclass(frozen=True, slots=True)
class Field:
    """One column that a format needs.

    Parameters
    ----------
    column : str
        Its name in the file.
    target : str
        What it is: ``arrival_s``, ``context_tokens``, ...
    kind : Kind
    required : bool
        An optional column may be missing from the file as a whole.
    """

    column: str
    target: str
    kind: Kind
    required: bool = True


def session_numbers(names: pl.Series) -> NDArray[np.int64]:
    """Names as session numbers: integers keep their value, other names are numbered as they appear.

    Nothing and negative integers mean "no session" and become -1.
    """
    import polars as pl

    numbers = names.replace("", "-1").cast(pl.Int64, strict=False)
    if not numbers.null_count():
        kept: NDArray[np.int64] = np.maximum(numbers.to_numpy(), -1)
        return kept
    known = names.unique(maintain_order=True)
    known = known.filter((known != "") & (known != "-1"))
    ranks = names.replace_strict(
        known, pl.int_range(len(known), eager=True), default=-1, return_dtype=pl.Int64
    )
    return ranks.to_numpy()

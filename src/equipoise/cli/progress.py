"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(title: str, unit: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with (done, in all); None if quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        said = [0]

        def line(done: int, total: int) -> None:
            quarter = 4 * done // total
            if quarter > said[0]:
                said[0] = quarter
                print(f"{title}: {done} of {total} {unit}", file=sys.stderr, flush=True)

        yield line

"""Why a function does not compile, in one sentence: the part of numba's answer that its author can act on."""

from __future__ import annotations

import re

__all__ = ["compile_reason"]

LONGEST = 160


def compile_reason(error: BaseException, file: str) -> str:
    """What is wrong and in which line of the file.

    Parameters
    ----------
    error : BaseException
        As raised by numba. It reports from the outside in; the innermost stage that failed names the cause.
    file : str
        Name of the policy's file; places elsewhere are ours.
    """
    text = re.split(r"Failed in \w+ mode pipeline \(step: .*\)\n", str(error))[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    # a tuple of arrays is spelled out with all its fields: its name says it
    reason = re.sub(r"\b([A-Z]\w*)\(array\(.*", r"\1", reason)
    reason = re.sub(r"( for '\$|, defined at ).*", "", reason)  # names and places of numba's own making
    if len(reason) > LONGEST:
        reason = reason[: LONGEST - 3] + "..."
    place = re.search(rf'File "(?:[^"]*/)?{re.escape(file)}", line (\d+)', text)
    return f"{reason.rstrip('.')} (line {place[1]})" if place else reason

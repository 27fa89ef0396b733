"""What the environment asks of a plug-in, and which engines it goes into."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.errors import InputError

__all__ = ["VARIABLES", "Options", "is_on", "read_options", "refusal"]

PREFIX = "EQUIPOISE_"
VARIABLES: dict[str, str] = {
    "VLLM": "1: place the requests of vLLM's data-parallel client",
    "SGLANG": "1: place the requests of SGLang's data-parallel controller",
    "POLICY": "the policy, with its parameters as on the command line; default equipoise",
    "COST": "the step cost: a preset, MODEL:v1, MODEL:v2 or a file; default h200",
    "RESERVE_TOKENS": "tokens kept free on a rank for the growth of what runs there; default 0",
    "AFFINITY": "share of a step that staying on the rank of its session may cost a request; default 0, off",
    "SEED": "of the policy; default 0",
    "SHADOWS": "policies asked beside it for the record, separated by blanks; needs DECISIONS",
    "DECISIONS": "file to append the decision log to; several API servers add their number to its name",
    "LOG_S": "seconds between lines that say what was placed; default 60, 0: none",
    "SETTLE_S": "SGLang: longest time until a rank has taken in what was sent to it; default 0.05",
    "ANY_VERSION": "1: go into an engine version it was never run on, if all it relies on is there",
}
"""Environment variables, each behind ``EQUIPOISE_``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the environment says; `VARIABLES` has the meanings.

    Parameters
    ----------
    policy, cost : str
    reserve_tokens : int
    affinity : float
    seed : int
    shadows : tuple of str
    decisions : str
        Empty: none are written.
    log_s, settle_s : float
    any_version : bool
    """

    policy: str = "equipoise"
    cost: str = "h200"
    reserve_tokens: int = 0
    affinity: float = 0.0
    seed: int = 0
    shadows: tuple[str, ...] = ()
    decisions: str = ""
    log_s: float = 60.0
    settle_s: float = 0.05
    any_version: bool = False


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a plug-in is asked for.

    Raises
    ------
    InputError
        The variable is neither 0 nor 1.
    """
    return _switch(environ, name)


def read_options(environ: Mapping[str, str] = os.environ) -> Options:
    """Read the environment.

    Raises
    ------
    InputError
        A value that cannot be, or a variable one letter away from one of ours.
    """
    known = {PREFIX + name for name in VARIABLES}
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            if close:
                raise InputError("is not known", where=name, fix=f"did you mean {close[0]}?")
    shadows = tuple(_word(environ, "SHADOWS", "").split())
    decisions = _word(environ, "DECISIONS", "")
    if shadows and not decisions:
        raise InputError("is set alone", where=f"{PREFIX}SHADOWS", fix=f"set {PREFIX}DECISIONS to a file too")
    return Options(
        policy=_word(environ, "POLICY", "equipoise"),
        cost=_word(environ, "COST", "h200"),
        reserve_tokens=int(_number(environ, "RESERVE_TOKENS", 0, 1e12, whole=True)),
        affinity=_number(environ, "AFFINITY", 0.0, 10.0),
        seed=int(_number(environ, "SEED", 0, 2**31 - 1, whole=True)),
        shadows=shadows,
        decisions=decisions,
        log_s=_number(environ, "LOG_S", 60.0, 1e9),
        settle_s=_number(environ, "SETTLE_S", 0.05, 1e3),
        any_version=_switch(environ, "ANY_VERSION"),
    )


def refusal(engine: str, found: str, run_on: Mapping[str, str], lacks: str, any_version: bool) -> str:
    """Why a plug-in stays out of an engine, in one line; empty: it goes in.

    Parameters
    ----------
    engine, found : str
        Its name and version.
    run_on : mapping
        Versions it was run on, and how.
    lacks : str
        What the plug-in relies on and did not find; empty: nothing.
    any_version : bool
        Whether an unknown version will do.
    """
    version = found.split("+")[0]
    names = ", ".join(run_on)
    if lacks:
        return f"equipoise stays out of {engine} {found}: {lacks}; {engine} keeps its own balancer (known: {names})"
    if version not in run_on and not any_version:
        return (
            f"equipoise stays out of {engine} {found}: it was run on {names} only; {engine} keeps its own balancer "
            f"({PREFIX}ANY_VERSION=1 goes in all the same)"
        )
    return ""


def _word(environ: Mapping[str, str], name: str, default: str) -> str:
    return environ.get(PREFIX + name, "").strip() or default


def _switch(environ: Mapping[str, str], name: str) -> bool:
    word = _word(environ, name, "0")
    if word not in ("0", "1"):
        raise InputError(f"{word!r}", where=PREFIX + name, fix="must be 0 or 1")
    return word == "1"


def _number(
    environ: Mapping[str, str], name: str, default: float, most: float, *, whole: bool = False
) -> float:
    word = _word(environ, name, "")
    if not word:
        return default
    try:
        value = int(word) if whole else float(word)
    except ValueError:
        value = -1
    if not 0 <= value <= most:
        kind = "whole number" if whole else "number"
        raise InputError(f"{word!r}", where=PREFIX + name, fix=f"must be a {kind} from 0 to {most:g}")
    return value

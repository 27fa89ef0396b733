"""The list of policies that look on, as people write it."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.errors import InputError
from equipoise.policies import parse

__all__ = ["MOST_SHADOWS", "shadow_list"]

MOST_SHADOWS = 16


def shadow_list(texts: Iterable[str], where: str = "--shadow") -> tuple[str, ...]:
    """Policies in a list, each with its parameters: ``least_tokens,dualpath,z=1.2`` is two of them.

    Parameters
    ----------
    texts : iterable of str
        Any number of such lists.
    where : str
        What errors call them.

    Raises
    ------
    InputError
        A policy or a parameter is unknown, one stands there twice, or there are more than 16.
    """
    found: list[str] = []
    for text in texts:
        first = True
        for part in text.split(","):
            if "=" in part and not first:
                found[-1] += f",{part}"
            else:
                found.append(part)
            first = False
    found = [text.strip() for text in found]
    labels: list[str] = []
    for text in found:
        label = parse(text).label
        if label in labels:
            raise InputError(f"{label!r} stands there twice", where=where, fix="name every policy once")
        labels.append(label)
    if len(found) > MOST_SHADOWS:
        raise InputError(
            f"{len(found)} policies look on",
            where=where,
            fix=f"name up to {MOST_SHADOWS}: each is asked each time",
        )
    return tuple(found)

"""Prompts of exact lengths: token ids, or words of which an engine's tokenizer makes as many tokens.

Prompts of different runs never share a beginning, so that no run finds the prefix cache that another one filled. Within
a run they share one only where the trace says so and `prefixes` is on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InputError
from equipoise.traces.trace import Trace

__all__ = ["DEFAULT_IDS", "WORDS", "Prompts", "Wording"]

DEFAULT_IDS = (10, 250)
"""Below 256: there in every tokenizer, and above the special tokens that stand at the beginning of most."""
LARGEST_ID = 10_000_000

WORDS = tuple(
    b"the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    b"one you were all her she there would their we him been has when who will no more if out so up said what its "
    b"about than into them can only other time new some could these two may first then do any like my now over such "
    b"our man me even most made after also did many off before must well back through years where much your way down "
    b"should because long each just state people those too mr how little good world make very year still see".split()
)
"""Common words: one token each, with the space before, in nearly every tokenizer."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How many tokens an engine makes of words: ``fixed + per_word * words``, from what it said of a few prompts."""

    fixed: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """Words that come nearest to so many tokens, at least one."""
        return max(round((tokens - self.fixed) / self.per_word), 1)


class Prompts:
    """Makes the prompts of a trace.

    Parameters
    ----------
    trace : Trace
        Lengths, and with `prefixes` what they share: its prefix blocks, or where it has none the turns of a session,
        each of which begins with the prompt before it.
    ids : tuple of int
        Ids to draw from: the first, and the one behind the last.
    prefixes : bool
    wording : Wording, optional
        Make text of words, not a list of ids.

    Raises
    ------
    InputError
        The range of ids is none or holds less than 16.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        ids: tuple[int, int] = DEFAULT_IDS,
        prefixes: bool = False,
        wording: Wording | None = None,
    ) -> None:
        low, high = ids
        if not 0 <= low < high <= LARGEST_ID or high - low < 16:
            raise InputError(
                f"token ids from {low} to {high - 1}",
                where="--token-ids",
                fix="give FIRST:END with at least 16 ids, such as 10:250",
            )
        self._trace, self._prefixes, self._wording = trace, prefixes, wording
        self._choices = len(WORDS) if wording else high - low
        if wording is None:
            self._table = _numbers(low, high)
        self._block = lru_cache(4096)(self._draw)

    def prompt(self, request: int, salt: int) -> bytes:
        """The prompt of a request as JSON.

        Parameters
        ----------
        request : int
            Row of the trace.
        salt : int
            Of the run: prompts of another one share nothing with it.
        """
        return self._json(self._places(request, int(self._trace.context_tokens[request]), salt))

    def plain(self, tokens: int, salt: int, number: int) -> bytes:
        """A prompt of so many tokens that is no request's, for warming up and probing."""
        return self._json(self._draw(salt, 3, number, self._length(tokens)))

    def _length(self, tokens: int) -> int:
        return tokens if self._wording is None else self._wording.words(tokens)

    def _json(self, places: NDArray[np.uint32]) -> bytes:
        if self._wording is not None:
            return b'"' + b" ".join([WORDS[i] for i in places.tolist()]) + b'"'
        # Fixed width, padded with blanks: looking up and joining is one copy, however long the prompt.
        return b"[" + self._table[places].tobytes()[:-1] + b"]"

    def _places(self, request: int, tokens: int, salt: int) -> NDArray[np.uint32]:
        trace = self._trace
        length = self._length(tokens)
        if self._prefixes and trace.prefix is not None:
            first, last = trace.prefix.offsets[request : request + 2].tolist()
            size = trace.prefix.block_tokens
            if (
                self._wording is not None
            ):  # words that stand for a block, so that equal blocks stay equal text
                size = max(round(size / self._wording.per_word), 1)
            blocks = trace.prefix.ids[first:last].tolist()[: -(-length // size)]
            shared = [self._block(salt, 1, int(b), size) for b in blocks]
            rest = length - size * len(blocks)
            if rest > 0:
                shared.append(self._draw(salt, 0, request, rest))
            return np.concatenate(shared)[:length]
        session = int(trace.session[request])
        if self._prefixes and session >= 0:
            return self._draw(salt, 2, session, length)
        return self._draw(salt, 0, request, length)

    def _draw(self, salt: int, kind: int, number: int, length: int) -> NDArray[np.uint32]:
        """The first so many of an endless row of places that belongs to these numbers."""
        generator = np.random.Generator(np.random.PCG64([salt, kind, number & (2**63 - 1)]))
        drawn: NDArray[np.uint32] = generator.integers(0, self._choices, length, dtype=np.uint32)
        return drawn


def _numbers(low: int, high: int) -> NDArray[np.bytes_]:
    """Numbers as text of equal width, blanks before and a comma behind each."""
    width = len(str(high - 1))
    rest = np.arange(low, high)
    text = np.full((len(rest), width + 1), ord(","), dtype=np.uint8)
    for place in range(width - 1, -1, -1):
        digit = rest % 10 + ord("0")
        text[:, place] = np.where((rest > 0) | (place == width - 1), digit, ord(" "))
        rest //= 10
    return text.view(f"S{width + 1}").reshape(-1)

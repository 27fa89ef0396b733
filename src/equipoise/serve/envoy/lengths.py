"""How many tokens an answer had that nobody has seen: from its bytes, at a ratio learnt where the number is known.

Envoy's access log says how long an answer was. What is known exactly: answers that had to use their whole budget
(``ignore_eos``), and answers of whose usage Envoy's ``sse_to_metadata`` filter told.
"""

from __future__ import annotations

from collections.abc import Callable

from equipoise.router.lengths import PromptLengths

__all__ = ["STREAM_BYTES_PER_TOKEN", "TEXT_BYTES_PER_TOKEN", "AnswerLengths"]

STREAM_BYTES_PER_TOKEN = 220.0
"""At first: one server-sent event a token, most of it the same words in each."""
TEXT_BYTES_PER_TOKEN = 4.0
"""At first: of an answer in one piece."""
FADING = 31.0 / 32.0
START_WEIGHT_TOKENS = 64.0
MOST_KINDS = 512


class AnswerLengths:
    """Estimates, and what is learnt of them; prompts are left to `PromptLengths`.

    Parameters
    ----------
    tokenizer : callable, optional
        For prompts.

    Examples
    --------
    >>> lengths = AnswerLengths()
    >>> lengths.estimate("m", stream=True, answer_bytes=2200)
    10
    >>> for _ in range(300):
    ...     lengths.learn("m", stream=True, answer_bytes=30_000, tokens=100)
    >>> lengths.estimate("m", stream=True, answer_bytes=3000)
    10
    """

    def __init__(self, tokenizer: Callable[[str, str], int | None] | None = None) -> None:
        self.prompts = PromptLengths(tokenizer)
        self._known: dict[tuple[str, bool], tuple[float, float]] = {}

    def estimate(self, model: str, *, stream: bool, answer_bytes: int) -> int:
        """Tokens of an answer, at least 1 where it has any bytes."""
        size, tokens = self._known.get((model, stream)) or _start(stream)
        return max(round(answer_bytes * tokens / size), 1) if answer_bytes > 0 else 0

    def learn(self, model: str, *, stream: bool, answer_bytes: int, tokens: int) -> None:
        """So many bytes were so many tokens."""
        if answer_bytes <= 0 or tokens <= 0:
            return
        key = (model, stream)
        size, known = self._known.pop(key, _start(stream))
        self._known[key] = (size * FADING + answer_bytes, known * FADING + tokens)
        if len(self._known) > MOST_KINDS:
            del self._known[next(iter(self._known))]


def _start(stream: bool) -> tuple[float, float]:
    ratio = STREAM_BYTES_PER_TOKEN if stream else TEXT_BYTES_PER_TOKEN
    return ratio * START_WEIGHT_TOKENS, START_WEIGHT_TOKENS

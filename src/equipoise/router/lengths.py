"""How many tokens a prompt has: from a tokenizer if there is one, else from its bytes, at a ratio learnt a model.

The ratio of a model is that of the sums of tokens and bytes of its last requests, older ones fading. Usage figures
of the engine teach it; until the first, it starts at four bytes a token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["PromptLengths"]

FADING = 63.0 / 64.0
START_BYTES_PER_TOKEN = 4.0
START_WEIGHT_TOKENS = 64.0
"""What the first ratio counts for: a short request or two outweigh it."""
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 0.5, 64.0


class PromptLengths:
    """Estimates, and what is learnt of them.

    Parameters
    ----------
    tokenizer : callable, optional
        ``tokenizer(model, text) -> tokens``; where it fails or says nothing, bytes are counted.
    most_models : int
        Models remembered; the longest silent is forgotten first.

    Examples
    --------
    >>> lengths = PromptLengths()
    >>> lengths.estimate("m", prompt_bytes=4000)
    1000
    >>> for _ in range(300):
    ...     lengths.learn("m", prompt_bytes=3000, prompt_tokens=1000)
    >>> lengths.estimate("m", prompt_bytes=6000)
    2000
    """

    def __init__(
        self, tokenizer: Callable[[str, str], int | None] | None = None, *, most_models: int = 256
    ) -> None:
        self._tokenizer, self._most = tokenizer, most_models
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.tokenizer_errors = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def reads_text(self) -> bool:
        """Whether there is a tokenizer, so that the text is wanted beside its bytes."""
        return self._tokenizer is not None

    def estimate(self, model: str, *, prompt_bytes: int, text: str | None = None) -> int:
        """Tokens of a prompt, at least 1."""
        if self._tokenizer is not None and text is not None:
            try:
                counted = self._tokenizer(model, text)
            except Exception:  # of others: an estimate is better than no answer
                self.tokenizer_errors += 1
                counted = None
            if counted is not None and counted > 0:
                return int(counted)
        return max(1, round(max(prompt_bytes, 0) / self.bytes_per_token(model)))

    def learn(self, model: str, *, prompt_bytes: int, prompt_tokens: int) -> None:
        """The engine has counted a prompt of so many bytes."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        if not LEAST_BYTES_PER_TOKEN <= prompt_bytes / prompt_tokens <= MOST_BYTES_PER_TOKEN:
            return  # images, ids of a session, a counter gone wrong: no text is like that
        size, tokens = self._known.pop(
            model, (START_WEIGHT_TOKENS * START_BYTES_PER_TOKEN, START_WEIGHT_TOKENS)
        )
        self._known[model] = (size * FADING + prompt_bytes, tokens * FADING + prompt_tokens)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def bytes_per_token(self, model: str) -> float:
        """The ratio believed."""
        size, tokens = self._known.get(model, (START_BYTES_PER_TOKEN, 1.0))
        return size / tokens

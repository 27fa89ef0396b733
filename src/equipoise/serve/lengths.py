"""How many tokens bytes and events stand for, learnt per model from what engines say of finished requests."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.engines.facts import RequestFacts
from equipoise.engines.prompts import prompt_text
from equipoise.router.lengths import PromptLengths

__all__ = ["Lengths", "context_of"]

MOST_MODELS = 256
FADING = 63.0 / 64.0
MOST_TOKENS_PER_EVENT = 64.0


class Lengths(PromptLengths):
    """Prompt lengths as the router estimates them, and how many tokens an event of a stream stands for.

    An event is one token, unless the engine speculates or bundles several into one; the counts it gives at the end of a
    stream tell.
    """

    def __init__(self, tokenizer: Callable[[str, str], int | None] | None = None) -> None:
        super().__init__(tokenizer)
        self._events: dict[str, tuple[float, float]] = {}

    def per_event(self, model: str) -> float:
        """Tokens of an event of this model's streams."""
        tokens, events = self._events.get(model, (1.0, 1.0))
        return tokens / events

    def learn_event(self, model: str, events: int, tokens: int) -> None:
        """A stream of so many events had so many tokens, as the engine counted."""
        if events <= 0 or not 1.0 <= tokens / events <= MOST_TOKENS_PER_EVENT:
            return
        if tokens == events and model not in self._events:
            return  # the rule, which needs no table
        had = self._events.get(model, (1.0, 1.0))
        if len(self._events) < MOST_MODELS or model in self._events:
            self._events[model] = (had[0] * FADING + tokens / events, had[1] * FADING + 1.0)


def context_of(lengths: PromptLengths, facts: RequestFacts, path: str, body: bytes) -> int:
    """Tokens that the prompts of a request hold on its rank; every choice holds its prompt.

    Parameters
    ----------
    lengths : PromptLengths
    facts : RequestFacts
        Of this body.
    path : str
    body : bytes
    """
    tokens = facts.prompt_tokens
    if tokens < 0:
        text = prompt_text(path, body) if lengths.reads_text else None
        tokens = lengths.estimate(facts.model, prompt_bytes=facts.prompt_bytes, text=text)
    return max(tokens, 1) * facts.choices

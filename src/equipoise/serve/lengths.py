"""How many tokens bytes and events stand for, learnt per model from what engines say of finished requests."""

from __future__ import annotations

from equipoise.router.lengths import PromptLengths

__all__ = ["Lengths"]

MOST_MODELS = 256
FADING = 63.0 / 64.0
MOST_TOKENS_PER_EVENT = 64.0


class Lengths(PromptLengths):
    """Prompt lengths as the router estimates them, and how many tokens an event of a stream stands for.

    An event is one token, unless the engine speculates or bundles several into one; the counts it gives at the end of a
    stream tell.
    """

    def __init__(self) -> None:
        super().__init__()
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

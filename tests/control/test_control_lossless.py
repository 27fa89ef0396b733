"""Why lengths must not depend on the drafts they are about: the emitted token's distribution, computed exactly."""

from __future__ import annotations

import numpy as np

P = np.array([0.5, 0.3, 0.2])
"""What the model says of the next token."""
Q = np.array([0.2, 0.3, 0.5])
"""What the drafter does."""


def emitted(verified: np.ndarray) -> np.ndarray:
    """Distribution of the first token; ``verified[x]``: chance that the draft is verified if it is token x."""
    accept = np.minimum(1, P / Q)
    rest = np.maximum(P - Q, 0)
    rest /= rest.sum()
    out = Q * verified * accept
    out = out + (Q * verified * (1 - accept)).sum() * rest
    return out + (Q * (1 - verified)).sum() * P  # not verified: the model's own token


def test_a_length_decided_on_older_data_keeps_the_distribution() -> None:
    for share in (0.0, 0.3, 1.0):
        assert np.allclose(emitted(np.full(3, share)), P)


def test_a_length_decided_on_the_draft_itself_does_not() -> None:
    sure = np.array([1.0, 1.0, 0.0])  # tokens the drafter is known to overrate are not verified
    assert np.abs(emitted(sure) - P).max() > 0.04

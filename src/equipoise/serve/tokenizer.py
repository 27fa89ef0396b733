"""A model's own tokenizer, to count prompts by: a ``tokenizer.json``, read by the package ``tokenizers``.

Counting goes on on the event loop, at about a microsecond a token (tokenizers 0.23). So a long text is not counted
whole: pieces spread over it are, which tell the tokens a character of this very text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from equipoise.errors import InputError

__all__ = ["read_tokenizer", "sampled"]

WHOLE = 4096
"""Characters of the longest text that is counted whole."""
PIECES = 8
PIECE = WHOLE // PIECES


def read_tokenizer(path: str | Path) -> Callable[[str, str], int]:
    """``count(model, text) -> tokens`` of a tokenizer's file, or of a folder that has one.

    Raises
    ------
    InputError
        The package is not installed, there is no such file, or it is no tokenizer.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    where = f"tokenizer {file}"
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "the package tokenizers is not installed", where=where, fix="pip install tokenizers"
        ) from error
    if not file.is_file():
        raise InputError("there is no such file", where=where, fix="name a tokenizer.json, or its folder")
    try:
        encode = Tokenizer.from_file(str(file)).encode
    except Exception as error:  # the package raises nothing narrower
        raise InputError(
            f"it is no tokenizer ({str(error)[:80]})", where=where, fix="name a tokenizer.json"
        ) from error

    def count(model: str, text: str) -> int:
        return sampled(text, lambda piece: len(encode(piece, add_special_tokens=False).ids))

    return count


def sampled(text: str, count: Callable[[str], int]) -> int:
    """Tokens of a text, counted whole up to 4,096 characters, from eight pieces spread over it beyond.

    Examples
    --------
    >>> sampled("abcd" * 50_000, lambda piece: len(piece) // 4)
    50000
    """
    size = len(text)
    if size <= WHOLE:
        return count(text)
    step = (size - PIECE) / (PIECES - 1)
    starts = [round(k * step) for k in range(PIECES)]
    return round(sum(count(text[at : at + PIECE]) for at in starts) * size / WHOLE)

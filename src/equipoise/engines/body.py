"""Change top-level fields of a JSON body without touching the rest of it, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from equipoise.engines.headers import PIN_FIELDS
from equipoise.errors import InputError

__all__ = ["set_fields"]

_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def set_fields(
    body: bytes, fields: Mapping[str, int] | Iterable[tuple[str, int]], drop: Iterable[str] = PIN_FIELDS
) -> bytes:
    r"""The body with these fields set and the others in ``drop`` removed; values are not re-encoded.

    Keys are compared decoded: writing ``"routed_dp_rank"`` with escapes hides nothing, and of a key that stands twice
    one is left.

    Parameters
    ----------
    body : bytes
        A JSON object.
    fields : mapping or pairs of str to int
        To set.
    drop : iterable of str
        To remove unless set: the fields by which a client could choose its rank.

    Raises
    ------
    InputError
        The body is no JSON object.

    Examples
    --------
    >>> set_fields(b'{"text": "a  b", "data_parallel_rank": 7}', {"routed_dp_rank": 3})
    b'{"text":"a  b","routed_dp_rank":3}'
    """
    try:
        top = _top.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is no JSON object ({str(error)[:80]})", fix="send one") from error
    for name in drop:
        top.pop(name, None)
    for name, value in dict(fields).items():
        top[name] = msgspec.Raw(b"%d" % value)
    return _encode(top)

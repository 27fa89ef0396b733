"""What a failure to speak TLS with an engine says, in words a person can act on."""

from __future__ import annotations

import ssl

__all__ = ["tls_words"]


def tls_words(error: BaseException) -> str:
    """Why a connection was not made, if TLS is why; else empty.

    Parameters
    ----------
    error : BaseException
        As the event loop or the client raised it. What it wraps is looked at, too.
    """
    found: BaseException | None = error
    while found is not None:
        wrapped = getattr(found, "certificate_error", None) or getattr(found, "os_error", None)
        if isinstance(wrapped, BaseException):  # aiohttp's
            found = wrapped
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {found.verify_message or found.reason}".rstrip(".")
        if isinstance(found, ssl.SSLError):
            return f"it does not speak TLS: {' '.join((found.reason or str(found)).split('_')).lower()}"
        found = found.__cause__
    return ""

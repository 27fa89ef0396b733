"""TLS to an engine: whose certificates are believed, and what is said of one that is not."""

from __future__ import annotations

import ssl

from equipoise.engines.tls_words import tls_words
from equipoise.errors import EngineError, InputError

__all__ = ["believed", "tls_context"]

WHERE = "--ca-file"


def tls_context(ca_file: str | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """What connections to ``https`` addresses are made with.

    Parameters
    ----------
    ca_file : str, optional
        Authorities to believe (PEM) instead of the system's.
    insecure : bool
        Believe any certificate of any name.

    Raises
    ------
    InputError
        The file cannot be read, or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InputError(
            f"{ca_file} holds no certificate", where=WHERE, fix="give the authority's, in PEM"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{ca_file} cannot be read ({reason})", where=WHERE, fix="check the path") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def believed(error: EngineError) -> EngineError:
    """The same error; where a certificate was not believed, with what helps."""
    words = tls_words(error)
    if "certificate" not in words:
        return error
    fix = "use the name that stands in it" if "mismatch" in words else f"{WHERE} names who signed it"
    return EngineError(f"{str(error).rstrip('.')}; {fix}.")

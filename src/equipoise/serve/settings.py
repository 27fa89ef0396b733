"""What the data path may do, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Forwarding", "Timeouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long what may take, in seconds; 0: as long as it likes. How long a request may wait for room is the router's.

    Parameters
    ----------
    connect_s : float
        Until an engine takes the connection.
    body_s : float
        Until the client has sent its body.
    first_byte_s : float
        From sending a request to the engine to the first byte of its answer: prefill and the engine's queue.
    idle_s : float
        Between two chunks of an answer.
    slow_client_s : float
        Until a client that takes nothing has taken enough for the engine to be read again.
    total_s : float
        The whole request.
    """

    connect_s: float = 5.0
    body_s: float = 60.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    slow_client_s: float = 30.0
    total_s: float = 7_200.0

    @property
    def shortest_s(self) -> float:
        """The shortest of those that end something."""
        given = [self.body_s, self.first_byte_s, self.idle_s, self.slow_client_s, self.total_s]
        return min((seconds for seconds in given if seconds > 0), default=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """How requests are passed on.

    Parameters
    ----------
    retries : int
        Second tries of one request at most.
    retry_share, retry_burst : float
        Second tries a request on average, and how many may be saved up.
    reveal : bool
        Whether answers say which worker and rank served them.
    behind_pd_proxy : bool
        The clients are a proxy that has chosen the prefill side: its headers about that pass.
    keep_authorization : bool
        Whether a client's key is meant for the engines.
    worker_key : str, optional
        The engines' key.
    worker_keys : mapping of str to str
        Of single instances, by name.
    """

    retries: int = 2
    retry_share: float = 0.1
    retry_burst: float = 10.0
    reveal: bool = False
    behind_pd_proxy: bool = False
    keep_authorization: bool = True
    worker_key: str | None = field(default=None, repr=False)
    worker_keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def key_of(self, name: str) -> str | None:
        """Key of an instance."""
        return self.worker_keys.get(name, self.worker_key)

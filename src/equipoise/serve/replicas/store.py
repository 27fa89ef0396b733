"""The leases in Redis or Valkey: one script, one round trip a beat; only the server's clock counts.

An owner's lease is a key that expires; the number of the lease (its *epoch*) never falls, not even when the server has
lost everything: whoever holds the highest puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from equipoise.errors import InputError

__all__ = ["Beat", "RedisStore", "Row", "Seen", "Store", "StoreError", "Wish"]

BEAT = """
local p, me, url = ARGV[1], ARGV[2], ARGV[3]
local ttl, grace, n = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSETNX', p .. 'meta', 'born', now)
redis.call('HSETNX', p .. 'meta', 'secret', ARGV[6])
local born = tonumber(redis.call('HGET', p .. 'meta', 'born'))
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', p .. 'members', '-inf', now)) do
  redis.call('ZREM', p .. 'members', gone)
  redis.call('HDEL', p .. 'urls', gone)
end
if url == '' then
  redis.call('ZREM', p .. 'members', me)
  redis.call('HDEL', p .. 'urls', me)
else
  redis.call('ZADD', p .. 'members', now + ttl, me)
  redis.call('HSET', p .. 'urls', me, url)
end
local rows = {}
for i = 0, n - 1 do
  local name, wish = ARGV[8 + i * 4], ARGV[9 + i * 4]
  local epoch, value = tonumber(ARGV[10 + i * 4]), ARGV[11 + i * 4]
  local key = p .. 'owner:' .. name
  local held = redis.call('HMGET', key, 'router', 'epoch')
  local there = held[1] and tonumber(held[2]) or 0
  local last = math.max(tonumber(redis.call('HGET', p .. 'epochs', name) or '0'), there)
  local write = false
  if wish == 'keep' then
    if held[1] == me then
      write = there == epoch
    elseif held[1] then
      write = there < epoch
    else
      write = last <= epoch
    end
  elseif wish == 'take' then
    if held[1] == me then
      epoch, write = there, true  -- the answer to the taking was lost
    elseif not held[1] and now - born >= grace then
      epoch, write = math.max(last, epoch) + 1, true
    end
  elseif wish == 'drop' then
    if held[1] == me and there == epoch then redis.call('DEL', key) end
  end
  if write then
    redis.call('HSET', p .. 'epochs', name, epoch)
    redis.call('HSET', key, 'router', me, 'epoch', epoch, 'at', now, 'value', value)
    redis.call('PEXPIRE', key, ttl)
  end
  local row = redis.call('HMGET', key, 'router', 'epoch', 'at', 'value')
  rows[#rows + 1] = {row[1] or '', row[2] or '', row[3] or '', row[4] or ''}
end
local members = {}
for _, id in ipairs(redis.call('ZRANGE', p .. 'members', 0, -1)) do
  members[#members + 1] = {id, redis.call('HGET', p .. 'urls', id) or ''}
end
return {now, redis.call('HGET', p .. 'meta', 'secret'), members, rows}
"""
"""Keys: ``meta`` (when the store was new, the pool's secret), ``members`` and ``urls``, ``epochs``, ``owner:NAME``."""


class StoreError(Exception):
    """The store did not answer, or not sensibly."""


class Wish(msgspec.Struct, frozen=True):
    """What a router wants of an instance: see who owns it, keep it, take it if it is free, drop it."""

    name: str
    want: Literal["see", "keep", "take", "drop"] = "see"
    epoch: int = 0
    """Of the lease kept or dropped; to take: the highest one heard of."""
    value: bytes = b""
    """Published with the lease."""


class Beat(msgspec.Struct, frozen=True):
    """What a router says at a beat; without an address it leaves."""

    router: str
    url: str
    ttl_s: float
    grace_s: float
    """Nothing is taken from a store younger than that: owners from before come first."""
    secret: str
    wishes: Sequence[Wish]


class Row(msgspec.Struct, frozen=True):
    """Who owns an instance; nobody: an empty name."""

    router: str = ""
    epoch: int = 0
    age_s: float = 0.0
    """Of the lease's value, by the server's clock."""
    value: bytes = b""


class Seen(msgspec.Struct, frozen=True):
    """What the store says."""

    secret: str
    members: dict[str, str]
    """Address of each router that lives."""
    rows: dict[str, Row]


class Store(Protocol):
    """Where leases are kept."""

    async def beat(self, beat: Beat) -> Seen:
        """Say all, hear all; `StoreError` if that is not possible."""

    async def close(self) -> None:
        """Let go of connections."""


class RedisStore:
    """Redis or Valkey, one server or a primary behind one address.

    Parameters
    ----------
    url : str
        ``redis://``, ``rediss://`` or ``unix://``.
    pool : str
        Routers of one name share instances.
    timeout_s : float
        A beat may take so long.

    Raises
    ------
    InputError
        The address is none, or the client library is missing.
    """

    def __init__(self, url: str, pool: str = "default", timeout_s: float = 0.5) -> None:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise InputError("several routers need redis-py", fix="pip install 'equipoise[serve]'") from error
        try:
            self._redis: Any = Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                max_connections=2,
            )
        except ValueError as error:
            raise InputError(f"the address of Redis is none ({error})", where="--replicas-redis") from error
        self._prefix = f"{{equipoise:{pool}}}:"
        self._script = self._redis.register_script(BEAT)

    async def beat(self, beat: Beat) -> Seen:
        """One round trip."""
        arguments: list[str | bytes | int] = [
            self._prefix,
            beat.router,
            beat.url,
            max(int(beat.ttl_s * 1000), 1),
            int(beat.grace_s * 1000),
            beat.secret,
            len(beat.wishes),
        ]
        for wish in beat.wishes:
            arguments += [wish.name, wish.want, wish.epoch, wish.value]
        try:
            now, secret, members, rows = await self._script(keys=[], args=arguments)
            return Seen(
                secret.decode(),
                {name.decode(): url.decode() for name, url in members},
                {wish.name: _row(int(now), *row) for wish, row in zip(beat.wishes, rows, strict=True)},
            )
        except Exception as error:  # whatever is wrong with it: the owners go on without
            raise StoreError(f"{type(error).__name__}: {error}") from error

    async def check(self) -> None:
        """See whether it answers, and as which server; `StoreError` if it does not."""
        try:
            await self._redis.ping()
        except Exception as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close its connections."""
        await self._redis.aclose()


def _row(now: int, router: bytes, epoch: bytes, at: bytes, value: bytes) -> Row:
    if not router:
        return Row()
    return Row(router.decode(), int(epoch), max(now - int(at), 0) / 1000.0, value)

"""The contract of an engine's adapter, as tests to inherit.

An adapter of one's own is tested by a class in a test file::

    from equipoise.testing.engine_contract import EngineContract


    class TestMyEngine(EngineContract):
        adapter = MyAdapter()
        recorded = {"loads": Path("loads.json").read_bytes()}
        shown = ((12, 0), (3, 4))  # running and waiting requests by rank in that recording

What the contract says is in `equipoise.engines.adapter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.engines.adapter import Adapter, Page
from equipoise.engines.headers import PREFILL_HEADERS, is_pin
from equipoise.engines.types import EngineInstance, Observation, Pin
from equipoise.errors import EngineError, InputError
from equipoise.testing.needs import HealthCheck, given, pytest, settings, st

__all__ = ["EngineContract"]

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/v1/completions?x=1")
PREFILL_FIELDS = ("disagg_prefill_dp_rank", "bootstrap_room", "bootstrap_host", "prefill_dp_rank")


class EngineContract:
    """Inherit, set the attributes, and name the class ``Test...``.

    Attributes
    ----------
    adapter : Adapter
        The one to test.
    recorded : mapping of str to bytes
        An answer of the engine for every page of the adapter.
    shown : sequence of (int, int)
        Running and waiting requests by rank in that recording.
    instance : EngineInstance, optional
        One of eight ranks that the adapter can pin to; by default one of mode ``header``.
    routes : sequence of str
        Routes it must be able to pin.
    examples : int
        Inputs tried by each random test.
    """

    adapter: ClassVar[Adapter]
    recorded: ClassVar[Mapping[str, bytes]] = {}
    shown: ClassVar[tuple[tuple[int, int], ...]] = ()
    instance: ClassVar[EngineInstance | None] = None
    routes: ClassVar[tuple[str, ...]] = ROUTES
    examples: ClassVar[int] = 150

    def test_is_an_adapter(self) -> None:
        """It has the four members, a plain name, and at least one page; names of pages are distinct."""
        assert isinstance(self.adapter, Adapter)
        assert self.adapter.kind == self.adapter.kind.lower().strip() != ""
        pages = self.adapter.pages
        assert pages
        assert all(isinstance(page, Page) and page.path.startswith("/") for page in pages)
        assert len({page.name for page in pages}) == len(pages)
        assert {page.name for page in pages if page.required} <= set(self.recorded), (
            "record every required page"
        )

    def test_reads_what_was_recorded(self) -> None:
        """The recording shows the requests that it showed."""
        seen = self.adapter.read(self.recorded)
        assert seen.kind == self.adapter.kind
        assert tuple((load.running, load.waiting) for load in seen.ranks) == self.shown
        self._sound(seen)

    def test_reading_twice_says_the_same(self) -> None:
        """An adapter has no memory: the router has."""
        assert self.adapter.read(self.recorded) == self.adapter.read(self.recorded)

    def test_every_cut_is_read_or_refused(self) -> None:
        """A page that ends early gives an observation or an `EngineError`."""
        for name, page in self.recorded.items():
            step = max(len(page) // 300, 1)
            for end in range(0, len(page), step):
                self._read({**self.recorded, name: page[:end]})

    def test_any_bytes_are_read_or_refused(self) -> None:
        """Whatever the bytes: an observation or an `EngineError`."""

        @settings(max_examples=self.examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(sorted(self.recorded)), st.binary(max_size=400))
        def check(name: str, data: bytes) -> None:
            self._read({**self.recorded, name: data})

        check()

    def test_any_damage_is_read_or_refused(self) -> None:
        """A recording with a piece replaced: an observation or an `EngineError`."""
        pieces = st.one_of(
            st.binary(max_size=6),
            st.sampled_from(
                [b"-1", b"1e400", b"NaN", b"null", b"[]", b"{}", b'"', b"9" * 30, b"\\", b"\n", b"\xff"]
            ),
        )

        @settings(max_examples=2 * self.examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(sorted(self.recorded)), st.floats(0, 1), st.integers(0, 12), pieces)
        def check(name: str, where: float, size: int, piece: bytes) -> None:
            page = self.recorded[name]
            at = int(where * len(page))
            self._read({**self.recorded, name: page[:at] + piece + page[at + size :]})

        check()

    def test_a_pin_names_its_rank_alone(self) -> None:
        """Pins of all ranks differ, and every number in one of them is from one value."""
        instance = self._pinnable()
        for route in self.routes:
            pins = [self.adapter.pin(instance, rank, route) for rank in range(instance.ranks)]
            assert len({(p.url, p.headers, p.body) for p in pins}) == instance.ranks
            assert all(p.url in instance.urls for p in pins)
            if instance.mode == "header":
                changing = [_changing(pin, pins[0]) for pin in pins[1:]]
                assert all(len(set(values)) == 1 for values in changing), "header and body must agree"

    def test_a_pin_is_stripped_from_clients(self) -> None:
        """What the router sets, a client cannot: every header of a pin is one that is taken off."""
        instance = self._pinnable()
        for route in self.routes:
            for name, value in self.adapter.pin(instance, 1, route).headers:
                assert is_pin(name), f"{name} would pass from a client to the engine"
                assert value
                assert all("!" <= letter <= "~" for letter in value)

    def test_a_pin_leaves_prefill_alone(self) -> None:
        """No header or field of the prefill side is ever set."""
        instance = self._pinnable()
        for route in self.routes:
            pin = self.adapter.pin(instance, 1, route)
            assert not {name.lower() for name, _ in pin.headers} & PREFILL_HEADERS
            assert not {name for name, _ in pin.body} & set(PREFILL_FIELDS)

    def test_no_rank_outside(self) -> None:
        """A rank that is not there is refused here, not by the engine."""
        instance = self._pinnable()
        for rank in (-1, instance.ranks, instance.ranks + 7):
            with pytest.raises(InputError):
                self.adapter.pin(instance, rank, self.routes[0])

    def test_a_port_a_rank_names_nothing(self) -> None:
        """Where the address is the rank, the request is left as it is."""
        urls = tuple(f"http://engine:{8000 + rank}" for rank in range(4))
        instance = EngineInstance("ports", self.adapter.kind, urls, ranks=4, mode="port")
        for rank in range(4):
            assert self.adapter.pin(instance, rank, self.routes[0]) == Pin(urls[rank])

    def _pinnable(self) -> EngineInstance:
        return self.instance or EngineInstance("one", self.adapter.kind, ("http://engine:8000",), ranks=8)

    def _read(self, pages: Mapping[str, bytes]) -> None:
        try:
            seen = self.adapter.read(pages)
        except EngineError:
            return
        self._sound(seen)

    def _sound(self, seen: Observation) -> None:
        keys = [(load.worker_id, load.rank) for load in seen.ranks]
        assert keys == sorted(set(keys)), "ranks are sorted and distinct"
        for load in seen.ranks:
            assert load.running >= 0 <= load.waiting
            assert load.age_s >= 0
            assert load.kv_usage is None or 0 <= load.kv_usage <= 1
            assert load.context_tokens is None or load.context_tokens >= 0
            assert load.kv_capacity_tokens is None or load.kv_capacity_tokens > 0
            assert load.max_batch is None or load.max_batch > 0


def _changing(pin: Pin, other: Pin) -> list[str]:
    """Values of a pin that another rank's pin has otherwise."""
    mine, theirs = ([*p.headers, *((n, str(v)) for n, v in p.body)] for p in (pin, other))
    return [value for (_, value), (_, before) in zip(mine, theirs, strict=True) if value != before]

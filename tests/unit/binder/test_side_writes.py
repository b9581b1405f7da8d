"""Writes that can wait keep to their rate, give way to bindings, take turns, and never pile up; in virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from kai_binder.projection.open_work import NominatedNode
from kai_binder.writes import side_writes
from kai_binder.writes.side_writes import SideWrite, SideWrites, nominated_node
from kaicore.errors import ClusterUnavailable

from tests.given.doubles.virtual_time import run_virtually


class Server:
    """Takes every write, and notes when."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.times: list[float] = []
        self.away = False

    async def patch(self, path: str, body: object, *, content_type: str) -> bytes:
        if self.away:
            raise ClusterUnavailable("away")
        self.paths.append(path)
        self.times.append(asyncio.get_running_loop().time())
        return b"{}"


class Dropped:
    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []

    def side_write(self, kind: str, result: str) -> None:
        self.results.append((kind, result))


def written_in(
    seconds: float, *writes: SideWrite, busy: Callable[[], bool] = lambda: False, rate: float = 10
) -> Server:
    """The writes that a server got after a time."""
    server = Server()

    async def write() -> None:
        waiting = SideWrites(server, rate=rate, busy=busy, observer=Dropped())  # type: ignore[arg-type]
        for one in writes:
            waiting.add(one)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting.run()

    run_virtually(write())
    return server


def about(number: int, *, kind: str = "annotation", node: str = "n1") -> SideWrite:
    return SideWrite(kind, f"uid-{number}", "PATCH", f"/{kind}/{number}/{node}", {})


def test_there_are_never_more_writes_in_a_second_than_the_rate() -> None:
    server = written_in(3.05, *(about(number) for number in range(100)))
    assert len(server.paths) == 31
    assert all(later - earlier >= 1 for earlier, later in zip(server.times, server.times[10:], strict=False))


def test_while_bindings_wait_a_tenth_of_the_rate_is_left() -> None:
    assert len(written_in(3.05, *(about(number) for number in range(100)), busy=lambda: True).paths) == 4


def test_kinds_take_turns_so_that_many_events_hold_up_no_condition() -> None:
    events = [about(number, kind="event") for number in range(100)]
    server = written_in(0.35, *events, about(0, kind="condition"))
    assert server.paths == ["/event/0/n1", "/condition/0/n1", "/event/1/n1", "/event/2/n1"]


def test_of_several_writes_of_a_kind_about_an_object_only_the_last_is_made() -> None:
    server = written_in(5, about(0), about(1), about(0, node="n2"))
    assert server.paths == ["/annotation/0/n2", "/annotation/1/n1"]


def test_writes_beyond_the_most_push_out_the_oldest_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_writes, "MAX_WAITING", 2)
    observer = Dropped()
    waiting = SideWrites(Server(), rate=1, busy=lambda: False, observer=observer)  # type: ignore[arg-type]
    ended: list[str] = []
    for name in ("a", "b", "c"):
        waiting.add(nominated_node(NominatedNode(name, "default", name, "n1"), then=partial(ended.append, name)))
    assert (len(waiting), ended, observer.results) == (2, ["a"], [("nomination", "given-up")])


def test_a_server_that_is_away_is_asked_once_a_second_and_nothing_is_lost() -> None:
    server = Server()
    server.away = True

    async def write() -> None:
        observer = Dropped()
        waiting = SideWrites(server, rate=10, busy=lambda: False, observer=observer)  # type: ignore[arg-type]
        waiting.add(about(0))
        running = asyncio.create_task(waiting.run())
        await asyncio.sleep(5.5)
        assert observer.results == []
        server.away = False
        await asyncio.sleep(1.2)
        running.cancel()
        assert observer.results == [("annotation", "written")]

    run_virtually(write())

"""The reflector's reading of an API server's answers, case by case."""

from typing import Any

import msgspec
import pytest
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.reflector_core import (
    WATCH_FAILURES,
    Backoff,
    Change,
    ListPage,
    ObjectGone,
    ObjectKey,
    ObjectRefused,
    ObjectSeen,
    ReflectorCore,
    Relist,
    Watch,
)
from kaicore.kube.wire.objects import NodeObject
from kaicore.kube.wire.resources import NODES

from tests.given.cluster import wire

EXPIRED = ApiStatus(410, "Expired", "too old")
MOST_S = Backoff().most_s
DOWN = ClusterUnavailable("connection refused")


def core(**uids: str) -> ReflectorCore[NodeObject]:
    return ReflectorCore(NODES, known_uids={ObjectKey("", name): uid for name, uid in uids.items()})


def page(*items: Any, version: str = "10", token: str = "") -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": version, "continue": token}, "items": list(items)})


def line(kind: str, document: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": document})


def bookmark(version: str) -> bytes:
    return line("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": version}})


def error(code: int, **more: Any) -> bytes:
    return line("ERROR", {"kind": "Status", "code": code, "message": "no", **more})


def in_short(changes: list[Change[NodeObject]]) -> list[str]:
    """Changes in short: `n1@5` for seen, `-n1@5` for gone, `?uid@5` for refused."""
    short = []
    for change in changes:
        match change:
            case ObjectSeen(wire_node):
                short.append(f"{wire_node.metadata.name}@{wire_node.metadata.resource_version}")
            case ObjectGone(key, _, version, missed):
                short.append(f"-{key.name}@{version}{' missed' if missed else ''}")
            case ObjectRefused(_, uid, version):
                short.append(f"?{uid}@{version}")
    return short


def watching(*names: str, version: str = "10") -> ReflectorCore[NodeObject]:
    one = core()
    one.take_page(page(*(wire.node(name, version="5") for name in names), version=version))
    return one


def test_what_is_nested_as_deep_as_an_api_server_takes_it_is_read_like_all_else() -> None:
    deep = b"[" * 9_000 + b"]" * 9_000
    document = wire.encode(wire.node("a", version="11")).replace(b"{", b'{"unread":' + deep + b",", 1)
    one = core()
    listed = page(wire.node("b", version="3"), {}).replace(b"{}]", document + b"]")
    assert in_short(one.take_page(listed)) == ["b@3", "a@11"]
    assert in_short(watching().take_lines([b'{"type":"ADDED","object":' + document + b"}"])) == ["a@11"]


def test_what_is_nested_deeper_than_any_api_server_takes_it_is_no_list_and_no_event() -> None:
    deep = b'{"unread":' + b"[" * 60_000 + b"]" * 60_000 + b"}"
    with pytest.raises(ClusterUnavailable, match="not a list"):
        core().take_page(deep)
    one = watching()
    assert one.take_lines([deep]) == []
    assert "not a watch event" in str(one.last_error)


def test_list_in_pages_is_followed_by_a_watch() -> None:
    one = core()
    assert one.request == ListPage()
    assert in_short(one.take_page(page(wire.node("a", version="3"), token="t"))) == ["a@3"]
    assert (one.request, one.synced) == (ListPage("t"), False)
    assert in_short(one.take_page(page(wire.node("b", version="4"), version="12"))) == ["b@4"]
    # The first page's version: what happens while further pages are read is watched again.
    assert (one.request, one.synced) == (Watch("10"), True)


def test_a_watch_goes_on_from_the_last_event_or_bookmark() -> None:
    one = watching("a")
    changes = one.take_lines(
        [line("ADDED", wire.node("b", version="11")), line("MODIFIED", wire.node("a", version="13"))]
    )
    assert in_short(changes) == ["b@11", "a@13"]
    assert one.request == Watch("13")
    assert in_short(one.take_lines([bookmark("20")])) == []
    assert one.request == Watch("20")
    assert in_short(one.take_lines([line("DELETED", wire.node("a", version="21"))])) == ["-a@21"]
    assert one.request == Watch("21")
    one.failed(DOWN)
    assert one.request == Watch("21")
    assert not one.watching


def test_events_that_come_twice_or_late_are_dropped() -> None:
    one = watching("a")
    newer, older = line("MODIFIED", wire.node("a", version="13")), line("MODIFIED", wire.node("a", version="12"))
    assert in_short(one.take_lines([newer, newer, older])) == ["a@13"]
    gone = line("DELETED", wire.node("a", version="14"))
    assert in_short(one.take_lines([gone, gone, older, newer])) == ["-a@14"]
    assert one.objects == {}


def test_versions_that_are_no_numbers_are_only_compared_for_equality() -> None:
    one = watching("a")
    changes = one.take_lines([line("MODIFIED", wire.node("a", version=v)) for v in ("x9", "x9", "x8")])
    assert in_short(changes) == ["a@x9", "a@x8"]


def test_successor_of_the_same_name_ends_its_predecessor() -> None:
    one = watching("a")
    successor = wire.node("a", uid="other", version="15")
    assert in_short(one.take_lines([line("ADDED", successor)])) == ["-a@5 missed", "a@15"]
    late = line("DELETED", wire.node("a", version="14"))
    assert in_short(one.take_lines([late, line("MODIFIED", wire.node("a", version="13"))])) == []
    assert one.objects[ObjectKey("", "a")].uid == "other"


def test_what_a_list_does_not_show_any_more_is_gone() -> None:
    one = core(a="uid-a", b="uid-b", c="older")
    assert in_short(one.take_page(page(wire.node("a"), token="t"))) == ["a@1"]
    # The one that had the name is gone first, so that a reader that goes by names does not lose its successor.
    assert in_short(one.take_page(page(wire.node("c", version="4")))) == ["-c@ missed", "c@4", "-b@ missed"]


def test_expiry_begins_a_list_anew_and_finds_what_was_missed() -> None:
    one = watching("a", "b")
    one.failed(EXPIRED)
    assert (one.request, one.relisting) == (ListPage(), Relist.EXPIRED)
    assert in_short(one.take_page(page(wire.node("a", version="5"), wire.node("c", version="30"), version="40"))) == [
        "c@30",
        "-b@5 missed",
    ]
    assert one.request == Watch("40")


def test_expired_watch_or_list_begins_anew() -> None:
    one = watching("a")
    changes = one.take_lines([line("ADDED", wire.node("b", version="11")), error(410), line("ADDED", wire.node("c"))])
    assert in_short(changes) == ["b@11"]
    assert (one.watching, one.request) == (False, ListPage())
    one.take_page(page(wire.node("a", version="5"), token="t"))
    one.failed(EXPIRED)
    assert one.request == ListPage()
    # The half list counts for nothing: b is there.
    assert in_short(one.take_page(page(wire.node("b", version="11")))) == ["-a@5 missed"]


def test_a_list_is_believed_even_if_it_goes_back() -> None:
    one = watching("a", version="100")
    one.failed(EXPIRED)
    assert in_short(one.take_page(page(wire.node("a", version="2"), version="3"))) == ["a@2"]
    assert one.request == Watch("3")
    assert in_short(one.take_lines([line("MODIFIED", wire.node("a", version="4"))])) == ["a@4"]


def test_an_object_that_comes_back_by_a_list_is_there_again() -> None:
    one = watching("a")
    one.take_lines([line("DELETED", wire.node("a", version="14"))])
    one.failed(EXPIRED)
    assert in_short(one.take_page(page(wire.node("a", version="9")))) == ["a@9"]
    assert in_short(one.take_lines([line("MODIFIED", wire.node("a", version="15"))])) == ["a@15"]


def test_a_watch_that_keeps_failing_gives_way_to_a_list() -> None:
    one = watching("a")
    for _ in range(WATCH_FAILURES - 1):
        one.failed(DOWN)
    assert one.request == Watch("10")
    one.failed(DOWN)
    assert (one.request, one.relisting) == (ListPage(), Relist.WATCH_FAILED)


def test_back_off_grows_until_a_watch_brings_something() -> None:
    one = watching("a")
    assert one.delay_s(1.0) == 0
    delays = []
    for _ in range(10):
        one.failed(DOWN)
        delays.append(one.delay_s(1.0))
    assert delays == sorted(delays)
    assert delays[0] < delays[1]
    assert delays[-1] == MOST_S
    assert one.delay_s(0.0) == MOST_S / 2
    # A list alone proves nothing: what comes after it may fail at once again.
    one.take_page(page(wire.node("a", version="5")))
    assert one.delay_s(1.0) == 0
    one.failed(EXPIRED)
    assert one.delay_s(1.0) == MOST_S
    one.take_page(page(wire.node("a", version="5")))
    one.take_lines([bookmark("50")])
    one.failed(DOWN)
    assert one.delay_s(1.0) == delays[0]


def test_the_servers_wish_is_granted_within_limits() -> None:
    one = watching("a")
    one.failed(ClusterUnavailable("busy", retry_after_s=7))
    assert one.delay_s(0.5) == 7
    one.take_lines([error(429, details={"retryAfterSeconds": 9})])
    assert one.delay_s(0.5) == 9
    one.failed(ClusterUnavailable("busy", retry_after_s=86400))
    assert one.delay_s(0.5) == 60


@pytest.mark.parametrize(
    ("lasted_s", "brought", "waits"), [(0.1, False, True), (0.1, True, False), (60.0, False, False)]
)
def test_only_a_short_watch_that_brought_nothing_has_failed(lasted_s: float, brought: bool, waits: bool) -> None:
    one = watching("a")
    if brought:
        one.take_lines([bookmark("11")])
    one.ended(lasted_s)
    assert (one.delay_s(1.0) > 0) == waits
    # The next watch is judged by itself.
    one.ended(0.1)
    assert one.delay_s(1.0) > 0


def test_an_object_that_cannot_be_decoded_is_refused_and_stays_known() -> None:
    one = watching("a")
    broken = wire.node("a", version="11") | {"spec": 7}
    assert in_short(one.take_lines([line("MODIFIED", broken), line("MODIFIED", broken)])) == ["?uid-a@11"]
    one.failed(EXPIRED)
    assert in_short(one.take_page(page(broken, wire.node("b", version="12")))) == ["b@12"]
    assert in_short(one.take_lines([line("DELETED", broken | {"metadata": wire.metadata("a", version="14")})])) == [
        "-a@14"
    ]


def test_a_list_with_something_nameless_in_it_proves_no_deletion() -> None:
    one = core(a="uid-a")
    assert in_short(one.take_page(page({"metadata": {"name": "x"}}, 7, wire.node("b")))) == ["?@", "?@", "b@1"]
    assert ObjectKey("", "a") in one.objects
    one.failed(EXPIRED)
    assert in_short(one.take_page(page(wire.node("b")))) == ["-a@ missed"]


@pytest.mark.parametrize("data", [b"", b"<html>", b'{"items":[]}', b'{"metadata":{},"items":7}'])
def test_answer_that_is_no_list_is_refused(data: bytes) -> None:
    one = core(a="uid-a")
    with pytest.raises(ClusterUnavailable):
        one.take_page(data)
    assert one.request == ListPage()


@pytest.mark.parametrize("data", [b"<html>", b"{}", b'{"type":"ERROR","object":"no"}', b'{"type":"ADDED"}'])
def test_what_is_no_watch_event_breaks_the_watch(data: bytes) -> None:
    one = watching("a")
    assert in_short(one.take_lines([line("ADDED", wire.node("b", version="11")), data])) == ["b@11"]
    assert not one.watching
    assert one.request == Watch("11")


def test_event_types_that_are_not_known_are_passed_over() -> None:
    one = watching("a")
    assert in_short(one.take_lines([line("RENAMED", wire.node("a", version="11"))])) == []
    assert in_short(one.take_lines([line("BOOKMARK", "?"), bookmark("")])) == []
    assert one.request == Watch("10")


@pytest.mark.parametrize(
    ("listed", "during", "found"),
    [
        # As it was: `a` is handed on, for its consumer to compare.
        ("a@5 b@5", "", "a@5 b@5"),
        # What came or changed since the watch ended comes with the next one.
        ("a@11 b@5 c@12", "MODIFIED a@11", "b@5 a@11"),
        # Gone since the watch ended, as the next one says; and gone before, which no watch said.
        ("b@5", "DELETED a@11", "b@5 -a@11"),
        ("b@5", "", "b@5 -a@5 missed"),
    ],
)
def test_check_compares_with_what_watches_brought_and_takes_only_what_they_missed(
    listed: str, during: str, found: str
) -> None:
    one = watching("a", "b")
    one.to_check = True
    one.begin_check()
    nodes = [wire.node(name, version=version) for name, version in (item.split("@") for item in listed.split())]
    changes = one.take_page(page(*nodes, version="12"))
    assert one.request == Watch("10"), "where the last watch ended"
    assert all(isinstance(change, ObjectSeen) and change.again for change in changes)
    if during:
        kind, _, item = during.partition(" ")
        name, _, version = item.partition("@")
        changes += one.take_lines([line(kind, wire.node(name, version=version))])
    changes += one.take_lines([bookmark("13")])
    assert " ".join(in_short(changes)) == found
    assert one.relisting is Relist.CHECK

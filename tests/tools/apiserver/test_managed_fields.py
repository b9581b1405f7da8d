"""The writers of an object: a real API server's `managedFields` of objects that were not applied."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.tools.apiserver.client import NODES, PODS, Client, binding, node, pod
from tests.tools.apiserver.conftest import ServerFactory


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def later(self) -> None:
        self.now += timedelta(minutes=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(start_server: ServerFactory, clock: Clock) -> AsyncIterator[Client]:
    server = await start_server(controllers=False, clock=clock)
    async with Client(server.http_url, server.admin_token) as connected:
        yield connected


def written(obj: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Manager, subresource and time of each entry."""
    entries = obj["metadata"]["managedFields"]
    assert all((entry["operation"], entry["fieldsType"]) == ("Update", "FieldsV1") for entry in entries)
    return [(entry["manager"], entry.get("subresource", ""), entry["time"][11:16]) for entry in entries]


async def test_every_writer_has_an_entry_with_the_time_of_its_last_change(client: Client, clock: Clock) -> None:
    agent = {"User-Agent": "kubelet/v1.34 (linux)"}
    created = await client.post(NODES, node("n"), headers={"User-Agent": "kubectl/v1.34"})
    assert written(created.json) == [("kubectl", "", "12:00")]
    for _ in range(2):
        clock.later()
        status = {"status": {"capacity": {"cpu": str(clock.now.minute)}}}
        patched = await client.merge(f"{NODES}/n/status", status, headers=agent)
    assert written(patched.json) == [("kubectl", "", "12:00"), ("kubelet", "status", "12:02")]
    clock.later()
    labels = {"metadata": {"labels": {"a": "b"}}}
    patched = await client.merge(f"{NODES}/n?fieldManager=me", labels, headers=agent)
    assert written(patched.json)[-1] == ("me", "", "12:03")
    assert written((await client.get(f"{NODES}/n")).json) == written(patched.json)


async def test_a_write_that_changes_nothing_leaves_everything_as_it_was(client: Client, clock: Clock) -> None:
    created = await client.post(NODES, node("n", a="b"))
    clock.later()
    again = await client.merge(f"{NODES}/n?fieldManager=me", {"metadata": {"labels": {"a": "b"}}})
    assert again.json == created.json


async def test_a_client_that_leaves_the_entries_out_or_makes_some_up_changes_nothing_of_them(
    client: Client, clock: Clock
) -> None:
    await client.post(NODES, node("n"))
    clock.later()
    replaced = await client.put(f"{NODES}/n?fieldManager=one", node("n", a="b"))
    clock.later()
    forged = node("n", a="c")
    forged["metadata"]["managedFields"] = [
        {"manager": "somebody", "operation": "Update", "time": "2001-01-01T00:00:00Z"}
    ]
    replaced = await client.put(f"{NODES}/n?fieldManager=two", forged)
    assert written(replaced.json) == [("Python", "", "12:00"), ("one", "", "12:01"), ("two", "", "12:02")]


async def test_a_binding_leaves_no_entry_as_in_the_real_server(client: Client, clock: Clock) -> None:
    await client.post(PODS, pod("p"))
    clock.later()
    assert (await client.post(f"{PODS}/p/binding", binding("p", "n"))).status == 201
    assert written((await client.get(f"{PODS}/p")).json) == [("Python", "", "12:00")]

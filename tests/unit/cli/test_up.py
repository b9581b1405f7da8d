"""The servers of `kai up`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kai_cli.main import app
from kai_cli.running import up as module
from kai_cli.running.stack import ClusterSpec
from kaicore.errors import KaiError

from tests.given.servers.servers import scratch_directory


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ("postgresql://from-the-environment/kai", "nats://from-the-environment:4222")),
        (["--database-url", "postgresql://named/kai"], ("postgresql://named/kai", "nats://from-the-environment:4222")),
        (["--nats-url", "nats://named:4222"], ("postgresql://from-the-environment/kai", "nats://named:4222")),
    ],
)
def test_servers_are_named_by_flags_or_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: tuple[str, str]
) -> None:
    monkeypatch.setenv("KAI_DATABASE_URL", "postgresql://from-the-environment/kai")
    monkeypatch.setenv("KAI_NATS_URL", "nats://from-the-environment:4222")
    assert servers_of(monkeypatch, *flags) == expected


def test_without_a_name_they_are_the_embedded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAI_DATABASE_URL", "KAI_NATS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert servers_of(monkeypatch) == (None, None)


async def test_a_hub_that_does_not_start_ends_kai_up_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clusters:
        """The hub's clusters of a stack, of which the hub does not get ready."""

        def __init__(self, *_: object) -> None:
            self.hub_started = asyncio.Event()

        async def register_own_first(self) -> None: ...

        async def run(self) -> None:
            raise KaiError("hub is not ready after 120 s")

    class Stack:
        async def start(self) -> None: ...

        async def add_cluster(self, spec: object) -> None: ...

    monkeypatch.setattr(module, "_keeping", Clusters)
    limit = asyncio.timeout(5)
    with pytest.raises(KaiError, match="hub is not ready"):
        async with limit:
            await module._start(Stack(), [ClusterSpec(name="a"), ClusterSpec(name="b")])
    assert not limit.expired()


def servers_of(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[Any, Any]:
    # Tests before this one may have had threads, which a fork server must not have.
    monkeypatch.setenv("KAI_FORK_SERVICES", "no")
    made: dict[str, Any] = {}

    class NoStack:
        def __init__(self, directory: object, **given: Any) -> None:
            made.update(given, directory=directory)

    async def not_started(*_: object) -> None: ...

    monkeypatch.setattr(module, "Stack", NoStack)
    monkeypatch.setattr(module, "_up", not_started)
    for check in ("check_nats", "check_database"):
        monkeypatch.setattr(module, check, lambda _: None)
    with scratch_directory() as root:
        app(["up", "--data-dir", str(Path(root)), *flags], result_action="return_value")
    return made["database_url"], made["nats_url"]

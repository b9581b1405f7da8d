"""Pages know how other services are, and the links that an installation gives them."""

import json
from pathlib import Path

import pytest
from kai_api.board import Board, ServicesWatch, parse_links
from kaicore.errors import ConfigurationError
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import with_health
from prometheus_client import CollectorRegistry, Gauge

from tests.given.servers.http_app import served_app
from tests.given.servers.ports import free_port


async def test_services_that_are_not_well_are_named_with_deposits_that_refuse(tmp_path: Path) -> None:
    health, registry, file = Health("log"), CollectorRegistry(), tmp_path / "running.json"
    Gauge("kai_relay_deposit_failing", "one", ["deposit"], registry=registry).labels("/seals").set(1)
    watch = ServicesWatch(file)
    await watch.look()
    assert "No such file" in watch.unwell[0]
    async with served_app(with_health(health, registry=registry)) as url:
        file.write_text(json.dumps({"services": {"relay": url, "gone": f"http://127.0.0.1:{free_port()}"}, "pid": 1}))
        await watch.look()
        gone, relay = watch.unwell
        assert gone.startswith("gone: no answer; ")
        assert relay == "relay: not ready; log failed: not yet; deposit /seals refuses seals"
        health.met("log")
        await watch.look()
        assert watch.unwell[1] == "relay: deposit /seals refuses seals"
    assert ServicesWatch().unwell == ()


async def test_services_of_a_name_say_what_they_are_called_and_are_missed_when_no_address_is_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "kai-relay-5d8f9c7b6d-x2x4z")
    health = Health()
    async with served_app(with_health(health, registry=CollectorRegistry())) as url:
        watch = ServicesWatch(host=url.removeprefix("http://"))
        await watch.look()
        assert [(line.name, line.status) for line in watch.lines] == [("relay-5d8f9c7b6d-x2x4z", "ready")]
    await watch.look()
    assert watch.unwell[0].startswith("relay-5d8f9c7b6d-x2x4z: no answer; ")
    watch.host = f"127.0.0.1:{free_port()}"
    await watch.look()
    assert watch.unwell[1] == "relay: no answer; no pod of it has an address"


def test_links_get_the_fields_of_an_object_and_need_those_that_they_name() -> None:
    board = Board(links=parse_links("logs=https://l.example/{namespace}/{name} node=http://n.example/?n={node}"))
    assert board.links_of(namespace="a b", name="c", node="") == (("logs", "https://l.example/a%20b/c"),)
    assert len(board.links_of(namespace="a", name="c", node="n")) == 2
    for wrong in (
        "logs",
        "x=javascript:alert(1)",
        "x=https://l.example/{name.__class__}",
        "x=https://l/{",
        "=https://l/",
    ):
        with pytest.raises(ConfigurationError, match="links: "):
            parse_links(wrong)

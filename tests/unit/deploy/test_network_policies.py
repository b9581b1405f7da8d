"""Network policies let through what services need by their settings, and nothing else, on both sides of each way."""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

from scripts import chart
from tests.unit.deploy.test_commands import MANIFESTS, WORKLOADS, settings_and_switches, settings_class
from tests.unit.deploy.test_hardening import name_of, variables_of

Json = dict[str, Any]
#: Who connects, to whom, at which port.
Way = tuple[str, str, int]

POLICIES = [manifest for manifest in MANIFESTS if manifest["kind"] == "NetworkPolicy"]
#: Settings that are addresses, and what is there. Those of `BESIDES` are off unless somebody sets them, and with them
#: the value `networkPolicies.egress`.
PEERS = {
    "database_url": "postgres",
    "inputs_database_url": "postgres",
    "nats_url": "nats",
    "kubeconfig": "kubernetes",
    "ingest_url": "kai-ingest",
    "services_host": "whose health is asked",
}
BESIDES = {"otlp_endpoint": "projector", "seal_to": "relay"}
PORTS = {"postgres": (5432,), "nats": (4222,), "kubernetes": (443, 6443), "names": (53,)}
#: Who is let in besides the services, to what.
PROMETHEUS, CLIENTS, ANYONE = "namespace monitoring", "pods with kai.scheduler/api-client", "anyone"
LET_IN = {"kai-api": CLIENTS, "kai-hub": CLIENTS, "kai-webhook": ANYONE}

BY_NAME = {name_of(workload): workload for workload in WORKLOADS}
#: A service of ours in an address.
_SERVICE = re.compile(r"http://(kai-[a-z]+)[.\w-]*:(\d+)")


def labels_of(workload: Json) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def selected(selector: Json, labels: dict[str, str]) -> bool:
    """True if a label selector selects labels, with the operators that the policies use."""
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return wanted.items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def rules_of(workload: Json, direction: str, policies: list[Json]) -> Iterator[Json]:
    for policy in policies:
        if selected(policy["spec"]["podSelector"], labels_of(workload)):
            yield from policy["spec"].get(direction, [])


def needed(workload: Json) -> Iterator[Way]:
    """The ways that a service's own settings, as its manifest has them, make it take."""
    name = name_of(workload)
    spec = workload["spec"]["template"]["spec"]
    peers = {"names"} | {peer for setting, peer in PEERS.items() if f"KAI_{setting.upper()}" in variables_of(workload)}
    if spec.get("automountServiceAccountToken", True):
        peers.add("kubernetes")
    yield from ((name, peer, port) for peer in peers for port in PORTS.get(peer, ()))
    if "whose health is asked" in peers:
        asked = [one for one, other in BY_NAME.items() if labels_of(other).get("kai.scheduler/health") == "asked"]
        assert len(asked) >= 6
        yield from ((name, one, 8080) for one in asked)
    yield from ((name, called, int(port)) for called, port in _SERVICE.findall(str(spec)))


def egress(workload: Json, policies: list[Json]) -> Iterator[Way]:
    """The ways that the policies let it take; an address that is not a pod's is known by its port."""
    at = {port: peer for peer, ports in PORTS.items() for port in ports}
    for rule in rules_of(workload, "egress", policies):
        ports = {port["port"] for port in rule["ports"]}
        for target in rule.get("to", [{}]):
            for port in ports:
                if "podSelector" not in target:
                    yield name_of(workload), at.get(port, "elsewhere"), port
                else:
                    for name, other in BY_NAME.items():
                        if selected(target["podSelector"], labels_of(other)):
                            yield name_of(workload), name, port


def ingress(workload: Json, policies: list[Json]) -> Iterator[Way]:
    for rule in rules_of(workload, "ingress", policies):
        ports = {port["port"] for port in rule["ports"]}
        for source in rule.get("from", [{}]):
            if "podSelector" in source:
                named = [n for n, other in BY_NAME.items() if selected(source["podSelector"], labels_of(other))]
                callers = named or [CLIENTS]
                assert named or source["podSelector"] == {"matchLabels": {"kai.scheduler/api-client": "true"}}
            else:
                callers = [PROMETHEUS if source else ANYONE]
            yield from ((caller, name_of(workload), port) for caller in callers for port in ports)


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_each_service_reaches_what_its_settings_name_and_nothing_else(workload: Json) -> None:
    directions = {
        direction
        for policy in POLICIES
        if selected(policy["spec"]["podSelector"], labels_of(workload))
        for direction in policy["spec"]["policyTypes"]
    }
    assert directions == {"Ingress", "Egress"}, "it is cut off unless a policy lets it"
    assert set(egress(workload, POLICIES)) == set(needed(workload))


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_each_service_is_reached_by_who_needs_it_and_by_nobody_else(workload: Json) -> None:
    name = name_of(workload)
    expected = {way for other in WORKLOADS for way in needed(other) if way[1] == name}
    # Of a Job nobody asks for metrics, but it has no port either.
    expected.add((PROMETHEUS, name, 8080))
    if name in LET_IN:
        expected.add((LET_IN[name], name, 8080))
    assert set(ingress(workload, POLICIES)) == expected


def test_every_setting_that_is_an_address_is_one_that_the_policies_know(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set()
    for script in entry_points(group="console_scripts"):
        if f"kai-{script.name.removeprefix('kai-')}" in BY_NAME:
            with monkeypatch.context() as patched:
                named |= settings_and_switches(settings_class(script.name, patched)).keys()
    addresses = {name for name in named if re.search(r"(_url|_urls|_endpoint|_to|_address|_host|kubeconfig)$", name)}
    assert addresses == {*PEERS, *BESIDES, "http_host"}


def test_ports_of_the_values_are_let_out_of_their_service_alone() -> None:
    values = {"networkPolicies": {"egress": {service: [4318, 9] for service in BESIDES.values()}}}
    policies = [one for one in chart.objects(values) if one["kind"] == "NetworkPolicy"]
    for name, workload in BY_NAME.items():
        besides = {port for _, peer, port in egress(workload, policies) if peer == "elsewhere"}
        assert besides == ({4318, 9} if name.removeprefix("kai-") in BESIDES.values() else set()), name


def test_names_are_asked_for_where_the_values_say() -> None:
    dns = {"namespace": "openshift-dns", "addresses": ["10.96.0.10/32"], "ports": [5353]}
    (policy,) = [
        one
        for one in chart.objects({"networkPolicies": {"dns": dns}})
        if one["metadata"]["name"] == "kai-names-and-metrics"
    ]
    (rule,) = policy["spec"]["egress"]
    assert rule["to"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}},
        {"ipBlock": {"cidr": "10.96.0.10/32"}},
    ]
    assert [(port["port"], port["protocol"]) for port in rule["ports"]] == [(5353, "UDP"), (5353, "TCP")]

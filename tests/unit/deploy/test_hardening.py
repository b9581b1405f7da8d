"""What is deployed may do no more than it must: networks, secrets, rights of containers, images."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.unit.deploy.test_commands import COMPOSE, DEPLOY, MANIFESTS, WORKLOADS, interpolated

POLICIES = [manifest for manifest in MANIFESTS if manifest["kind"] == "NetworkPolicy"]

Json = dict[str, Any]


def name_of(workload: Json) -> str:
    return str(workload["metadata"]["name"])


def labels_of(workload: Json) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def selected(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a label selector selects labels, with the operators that the policies use."""
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return wanted.items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def rules_of(workload: Json, direction: str) -> Iterator[Json]:
    for policy in POLICIES:
        if selected(policy["spec"]["podSelector"], labels_of(workload)):
            yield from policy["spec"].get(direction, [])


def ports(rules: Iterator[Json]) -> set[int]:
    return {port["port"] for rule in rules for port in rule.get("ports", [])}


def containers_of(workload: Json) -> list[Json]:
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def variables_of(workload: Json) -> dict[str, Json]:
    return {
        variable["name"]: variable for container in containers_of(workload) for variable in container.get("env", [])
    }


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_each_service_reaches_what_it_is_told_to_use_and_nothing_else(workload: Json) -> None:
    directions = {
        direction
        for policy in POLICIES
        if selected(policy["spec"]["podSelector"], labels_of(workload))
        for direction in policy["spec"]["policyTypes"]
    }
    assert directions == {"Ingress", "Egress"}, "it is cut off unless a policy lets it"
    variables = variables_of(workload)
    spec = workload["spec"]["template"]["spec"]
    expected = {53}
    if "KAI_DATABASE_URL" in variables:
        expected.add(5432)
    if "KAI_NATS_URL" in variables:
        expected.add(4222)
    if spec.get("automountServiceAccountToken", True):
        expected |= {443, 6443}
    if "KAI_INGEST_URL" in variables or spec.get("initContainers"):
        expected.add(8080)
    assert ports(rules_of(workload, "egress")) == expected


def test_who_is_called_lets_the_caller_in() -> None:
    by_name = {name_of(workload): workload for workload in WORKLOADS}
    for caller, called in (("kai-exporter", "kai-ingest"), ("kai-scheduler", "kai-watcher")):
        sources = [source for rule in rules_of(by_name[called], "ingress") for source in rule["from"]]
        assert any(
            "podSelector" in source and selected(source["podSelector"], labels_of(by_name[caller]))
            for source in sources
        )
        targets = [target for rule in rules_of(by_name[caller], "egress") for target in rule.get("to", [])]
        assert any(
            "podSelector" in target and selected(target["podSelector"], labels_of(by_name[called]))
            for target in targets
        )


ROLES = {
    "kai-relay": "read",
    "kai-projector": "project",
    "kai-api": "read",
    "kai-webhook": "read",
    "kai-migrate": "migrate",
}


BUS_CLIENTS = ("kai-relay", "kai-scheduler", "kai-binder", "kai-ingest", "kai-watcher", "kai-projector", "kai-hub")


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_each_service_has_secrets_of_its_own(workload: Json) -> None:
    secrets = {
        name: variable["valueFrom"]["secretKeyRef"]["name"]
        for name, variable in variables_of(workload).items()
        if "secretKeyRef" in variable.get("valueFrom", {})
    }
    name = name_of(workload)
    expected = {}
    if name not in ("kai-exporter", "kai-operator"):
        expected["KAI_DATABASE_URL"] = f"kai-database-{ROLES.get(name, 'append')}"
    if name in BUS_CLIENTS:
        expected["KAI_NATS_URL"] = f"kai-nats-{name.removeprefix('kai-')}"
    assert secrets == expected
    readme = (DEPLOY / "k8s" / "README.md").read_text()
    assert all(f"`{secret}`" in readme for secret in expected.values())


def test_no_password_is_an_argument_of_a_process() -> None:
    commands = [
        *(service.get("command", []) for service in COMPOSE["services"].values()),
        *(
            [*container["command"], *container.get("args", [])]
            for workload in WORKLOADS
            for container in containers_of(workload)
        ),
    ]
    for command in commands:
        assert not [part for part in command if "@" in part or "DATABASE_URL" in part or "PASSWORD" in part]


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_every_container_of_a_pod_is_denied_what_it_does_not_need(workload: Json) -> None:
    for container in containers_of(workload):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_container_of_compose_is_denied_what_it_does_not_need(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    added = {"postgres": {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}}
    assert set(service.get("cap_add", [])) == added.get(name, set())
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_has_a_user_of_the_log_and_of_the_bus_for_each_service() -> None:
    services = COMPOSE["services"]

    def user(service: str, variable: str) -> str:
        return interpolated(services[service]["environment"][variable]).partition("://")[2].partition(":")[0]

    log = {name: user(name, "KAI_DATABASE_URL") for name in services if "KAI_DATABASE_URL" in env_of(services[name])}
    assert log == {
        "migrate": "kai_migrate",
        "relay": "kai_read",
        "api": "kai_read",
        "projector": "kai_project",
        **dict.fromkeys(("watcher", "scheduler", "binder", "ingest"), "kai_append"),
    }
    bus = {name: user(name, "KAI_NATS_URL") for name in services if "KAI_NATS_URL" in env_of(services[name])}
    assert bus == {name: name for name in ("relay", "scheduler", "binder", "ingest")}
    for config in COMPOSE["configs"].values():
        assert (DEPLOY / "compose" / config["file"]).exists()


def env_of(service: Json) -> Json:
    environment: Json = service.get("environment", {})
    return environment


def test_every_image_can_be_given_by_digest_and_one_without_is_found() -> None:
    spec = importlib.util.spec_from_file_location("check_digests", DEPLOY / "image" / "check_digests.py")
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    for name, service in COMPOSE["services"].items():
        assert service["image"] == "kai-ledger" or service["image"].startswith("${KAI_"), name
    dockerfile = (DEPLOY / "image" / "Dockerfile").read_text()
    froms = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("FROM")]
    assert set(froms) == {"${PYTHON_IMAGE}"}
    digest = f"@sha256:{'0' * 64}"
    lines = [f"  image: a/b{digest}", "  - image: c:1", "    image: 'd'", "  PYTHON_IMAGE: e:2", "  image: c:1"]
    rendered = "\n".join([*lines, "  image: kai-ledger"])
    assert check.without_digest(rendered) == ["c:1", "d", "e:2"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_kustomize_renders_every_manifest_once() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(DEPLOY / "k8s")], capture_output=True, text=True, check=True)
    rendered = [(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(done.stdout)]
    assert len(rendered) == len(set(rendered))
    # The webhook is applied after its certificate, the operator instead of what it makes, the hub where there is one.
    everything = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in MANIFESTS}
    expected = {
        (kind, name)
        for kind, name in everything
        if name not in ("kai-webhook", "kai-operator", "kai-hub", "kai-register", "kai-binder-dispatches")
        or (kind == "NetworkPolicy" and name != "kai-hub")
    }
    assert expected < set(rendered)
    assert {kind for kind, _ in set(rendered) - expected} == {"CustomResourceDefinition"}

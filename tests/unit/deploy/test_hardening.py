"""Deployments have the least rights: secrets, rights of containers, images."""

import importlib.util
import shutil
import subprocess
from typing import Any

import pytest
from kaicore.yaml_text import load_yaml_all

from tests.unit.deploy.test_commands import COMPOSE, DEPLOY, MANIFESTS, WORKLOADS, interpolated

Json = dict[str, Any]


def name_of(workload: Json) -> str:
    return str(workload["metadata"]["name"])


def containers_of(workload: Json) -> list[Json]:
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def variables_of(workload: Json) -> dict[str, Json]:
    return {
        variable["name"]: variable for container in containers_of(workload) for variable in container.get("env", [])
    }


ROLES = {
    "kai-relay": "read",
    "kai-projector": "project",
    "kai-api": "read",
    "kai-webhook": "read",
    "kai-migrate": "migrate",
    "kai-register": "binder",
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
        expected["KAI_DATABASE_URL"] = f"kai-database-{ROLES.get(name, name.removeprefix('kai-'))}"
    if name == "kai-api":
        expected["KAI_INPUTS_DATABASE_URL"] = "kai-database-inputs"
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
        **{name: f"kai_{name}" for name in ("watcher", "scheduler", "binder", "ingest")},
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
    assert check.without_digest("\n".join([*lines, "  image: kai-ledger"])) == ["c:1", "d", "e:2"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_kustomize_renders_every_manifest_once() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(DEPLOY / "k8s")], capture_output=True, text=True, check=True)
    rendered = [(one["kind"], one["metadata"]["name"]) for one in load_yaml_all(done.stdout)]
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

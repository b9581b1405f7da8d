"""The commands of compose.yaml and the manifests: the real entry point takes each flag and variable."""

import importlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from kai_cli.main import app
from kai_exporter.main import ExporterSettings
from kaicore.kube.wire.kubelet_checkpoints import CPU_STATE, DEVICE_CHECKPOINT, MEMORY_STATE
from kaicore.runtime.agent.settings import AgentSettings, read_agent_settings, settings_of
from kaicore.runtime.service import Service, ServiceSettings
from kaicore.runtime.service.settings import read_settings
from kaicore.yaml_text import load_yaml

from scripts.chart import documents

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = load_yaml((DEPLOY / "compose" / "compose.yaml").read_text())
MANIFESTS = [
    document
    for path in sorted([*(DEPLOY / "k8s").glob("*.yaml"), *(DEPLOY / "hub").glob("*.yaml")])
    for document in documents(path.read_text())
    if document["kind"] != "Kustomization"
]
WORKLOADS = [manifest for manifest in MANIFESTS if manifest["kind"] in ("Deployment", "DaemonSet", "Job")]


@dataclass(frozen=True)
class Start:
    """One container: its command, and what its environment is besides the image's."""

    name: str
    command: list[str]
    environment: dict[str, str]

    def __str__(self) -> str:
        return self.name


def interpolated(value: Any) -> str:
    """`${NAME:-default}` as Compose reads it where NAME is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))


def composed() -> list[Start]:
    return [
        Start(
            f"compose/{name}",
            [interpolated(part) for part in service["command"]],
            {key: interpolated(value) for key, value in service.get("environment", {}).items()},
        )
        for name, service in COMPOSE["services"].items()
        if service["image"] == "kai-ledger"
    ]


def in_cluster() -> list[Start]:
    return [
        Start(
            f"k8s/{workload['metadata']['name']}",
            container["command"],
            # Where a value comes from elsewhere, any text will do.
            {variable["name"]: variable.get("value", "given") for variable in container.get("env", [])},
        )
        for workload in WORKLOADS
        for container in workload["spec"]["template"]["spec"]["containers"]
    ]


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(KAI_\w+)=(\S+)", (DEPLOY / "image" / "Dockerfile").read_text()))


AnySettings = type[ServiceSettings] | type[AgentSettings]


def settings_class(command: str, monkeypatch: pytest.MonkeyPatch) -> AnySettings:
    """The settings that an entry point reads: those of its `Service`, or as it hands them to `run_agent`."""
    (script,) = entry_points(group="console_scripts", name=command)
    module = importlib.import_module(script.module)
    if hasattr(module, "SERVICE"):
        service: Service[ServiceSettings] = module.SERVICE
        assert script.load() == service.main
        return service.settings
    seen: list[AnySettings] = []

    def run(_name: str, settings: AnySettings, *_: object, **__: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(module, "run_agent", run)
    with suppress(SystemExit):
        script.load()()
    return seen[0]


def settings_and_switches(settings: AnySettings) -> dict[str, bool]:
    """Names of settings, and whether each is on or off."""
    if issubclass(settings, AgentSettings):
        return {name: setting.kind is bool for name, setting in settings_of(settings).items()}
    return {name: field.annotation is bool for name, field in settings.model_fields.items()}


def read_by(settings: AnySettings, arguments: list[str]) -> ServiceSettings | AgentSettings:
    if issubclass(settings, AgentSettings):
        return read_agent_settings(settings, arguments)
    return read_settings(settings, arguments)


@pytest.mark.parametrize("start", [*composed(), *in_cluster()], ids=str)
def test_the_entry_point_takes_command_and_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = start.command
    if program == "python":
        return
    if program == "kai":
        app.parse_args(arguments, exit_on_error=False, print_error=False)
        return
    settings = settings_class(program, monkeypatch)
    unknown = {
        name for name in start.environment if name.removeprefix("KAI_").lower() not in settings_and_switches(settings)
    }
    assert not unknown
    for name in [name for name in os.environ if name.startswith("KAI_")]:
        monkeypatch.delenv(name)
    for name, value in (image_environment() | start.environment).items():
        monkeypatch.setenv(name, value)
    read = read_by(settings, arguments)
    assert (read.http_host, read.http_port) == ("0.0.0.0", 8080), "probes and other containers reach it there"


def test_compose_names_only_what_it_has() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for wanted, how in service.get("depends_on", {}).items():
            assert wanted in services
            optional = not how.get("required", True)
            assert optional or not services[wanted].get("profiles") or service.get("profiles"), (name, wanted)
        for volume in service.get("volumes", []):
            assert interpolated(volume).split(":")[0] in COMPOSE["volumes"]
    hosts = set(services)
    for start in composed():
        service = services[start.name.removeprefix("compose/")]
        mounted = tuple(interpolated(volume).split(":")[1] for volume in service.get("volumes", []))
        for value in [*start.environment.values(), *(part.partition("=")[2] for part in start.command)]:
            host = re.match(r"\w+://(?:\w+:\w+@)?([\w.-]+)", interpolated(value))
            assert host is None or host[1] in hosts
            assert not value.startswith("/") or value.startswith(mounted)


def test_containers_may_write_into_their_volumes() -> None:
    """They run as nobody, and a new volume is root's unless the image has the folder."""
    (owned,) = re.findall(r"install -d -o 65532 -g 65532 (.+)", (DEPLOY / "image" / "Dockerfile").read_text())
    for service in COMPOSE["services"].values():
        if service["image"] == "kai-ledger":
            mounts = {interpolated(volume).split(":")[1] for volume in service.get("volumes", [])}
            assert mounts <= set(owned.split())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload["metadata"]["name"])
def test_workloads_have_what_a_careful_cluster_wants(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    accounts = {manifest["metadata"]["name"] for manifest in MANIFESTS if manifest["kind"] == "ServiceAccount"}
    bound = {
        subject["name"]
        for manifest in MANIFESTS
        if manifest["kind"] == "ClusterRoleBinding"
        for subject in manifest["subjects"]
    }
    account = pod.get("serviceAccountName")
    if account is not None:
        assert account in accounts
    # Only who has rights gets a token.
    assert (account in bound) == pod.get("automountServiceAccountToken", True)
    (container,) = pod["containers"]
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    security = container["securityContext"]
    assert security.get("runAsNonRoot") or workload["kind"] == "DaemonSet", "only the kubelet's socket is root's"
    if workload["kind"] != "Job":
        ports = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        selector = workload["spec"]["selector"]["matchLabels"]
        assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("setting", "below", "file"),
    [
        ("podresources_socket", "", "/var/lib/kubelet/pod-resources/kubelet.sock"),
        ("kubelet_state_dir", CPU_STATE, "/var/lib/kubelet/cpu_manager_state"),
        ("kubelet_state_dir", MEMORY_STATE, "/var/lib/kubelet/memory_manager_state"),
        ("kubelet_state_dir", DEVICE_CHECKPOINT, "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),
        ("sysfs_root", "devices/system/node/node0/cpulist", "/sys/devices/system/node/node0/cpulist"),
    ],
)
def test_the_exporter_is_mounted_what_it_reads_of_its_node(setting: str, below: str, file: str) -> None:
    (exporter,) = [workload for workload in WORKLOADS if workload["metadata"]["name"] == "kai-exporter"]
    pod = exporter["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {item["name"]: item.get("value", "") for item in container["env"]}
    read = Path(given.get(f"KAI_{setting.upper()}") or settings_of(ExporterSettings)[setting].default, below)
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    shown = {
        mount["mountPath"]: on_host[mount["name"]] for mount in container["volumeMounts"] if mount["name"] in on_host
    }
    (mounted,) = [path for path in shown if read.is_relative_to(path)]
    assert str(Path(shown[mounted], read.relative_to(mounted))) == file


def test_all_parts_name_the_cluster_alike() -> None:
    names = {start.environment["KAI_CLUSTER"] for start in in_cluster() if "KAI_CLUSTER" in start.environment}
    assert len(names) == 1

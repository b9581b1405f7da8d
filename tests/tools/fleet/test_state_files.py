"""The kubelet's state files of a simulated node: what is in them, and when."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from kai_fleet.kubelet import Container, Kubelet, Pod
from kai_fleet.node.state_files import StateFiles
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import parse_profile
from kaicore.kube.wire import kubelet_checkpoints as checkpoints

GI = 1024**3
PROFILE = """
groups:
  - name: n
    count: 1
    zones: 2
    perZone: {{cpus: 8, memory: 16Gi, devices: {{gpu.example/x: 2}}}}
    devices: {{net.example/nic: [{{id: nic-0, zones: [0, 1]}}, {{id: nic-1}}]}}
    kubelet:
      topologyManagerPolicy: {policy}
      cpuManagerPolicy: {cpus}
      cpuManagerPolicyOptions: {options}
      memoryManagerPolicy: {memory}
      reservedSystemCPUs: "0"
      reservedMemory: [{{numaNode: 0, limits: {{memory: 1Gi}}}}]
      kubeReserved: {{memory: 924Mi}}
"""


class Node(NamedTuple):
    directory: Path
    kubelet: Kubelet
    files: StateFiles

    def cpus(self) -> checkpoints.CpuManagerState:
        return checkpoints.decode_cpu_state((self.directory / checkpoints.CPU_STATE).read_bytes())

    def memory(self) -> checkpoints.MemoryManagerState:
        return checkpoints.decode_memory_state((self.directory / checkpoints.MEMORY_STATE).read_bytes())

    def devices(self) -> checkpoints.DeviceManagerState:
        return checkpoints.decode_device_state((self.directory / checkpoints.DEVICE_CHECKPOINT).read_bytes())

    def admit(self, pod: Pod) -> bool:
        rejection = self.kubelet.admit(pod)
        self.files.changed(self.kubelet)
        return rejection is None


def node_of(
    directory: Path, *, policy: str = "restricted", cpus: str = "static", memory: str = "Static", options: str = "{}"
) -> Node:
    spec = expand(parse_profile(PROFILE.format(policy=policy, cpus=cpus, memory=memory, options=options), source="t"))[
        0
    ]
    kubelet = Kubelet(spec.machine, spec.config)
    return Node(directory, kubelet, StateFiles(directory, kubelet))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return node_of(tmp_path)


def pod_of(uid: str, *containers: Container) -> Pod:
    return Pod(uid, "default", uid, containers)


def container(name: str, kind: str = "app", **amounts: int) -> Container:
    resources = {"cpu": 2000, "memory": GI, **{key.replace("_", "."): value for key, value in amounts.items()}}
    resources = {
        {"gpu": "gpu.example/x", "nic": "net.example/nic"}.get(key, key): value for key, value in resources.items()
    }
    return Container(name, kind, resources, resources)  # type: ignore[arg-type]


def test_files_of_an_empty_node_say_what_is_free_and_what_is_reserved(node: Node) -> None:
    assert node.cpus() == checkpoints.CpuManagerState("static", "0-15")
    memory = node.memory()
    assert (memory.policy, memory.entries) == ("Static", {})
    table = checkpoints.MemoryTable(total=16 * GI, system_reserved=GI, allocatable=15 * GI, reserved=0, free=15 * GI)
    assert memory.machine[0].memory_map == {"memory": table}
    assert (memory.machine[1].number_of_assignments, memory.machine[1].cells) == (0, [1])
    assert node.devices() == checkpoints.DeviceManagerState(
        None,
        {
            "gpu.example/x": [device.id for device in node.kubelet.managers.devices.pools["gpu.example/x"].devices],
            "net.example/nic": ["nic-0", "nic-1"],
        },
    )


def test_files_list_every_container_by_pod_uid_init_containers_and_sidecars_too(node: Node) -> None:
    assert node.admit(
        pod_of("uid-1", container("init", "init", gpu=1), container("side", "sidecar"), container("main", gpu=1))
    )
    assigned = node.cpus().entries["uid-1"]
    assert set(assigned) == {"init", "side", "main"}
    assert assigned["init"] == assigned["side"], "the sidecar takes what the init container lends"
    assert {entry.container for entry in node.devices().entries or ()} == {"init", "main"}
    assert node.memory().entries["uid-1"]["main"] == [checkpoints.MemoryEntry([0], "memory", GI)]
    machine = node.memory().machine[0]
    assert (machine.memory_map["memory"].free, machine.cells) == (13 * GI, [0])


def test_a_device_of_two_numa_nodes_is_listed_under_both_and_one_without_under_minus_one(tmp_path: Path) -> None:
    node = node_of(tmp_path, policy="best-effort")
    assert node.admit(pod_of("uid-1", container("main", nic=2)))
    (entry,) = node.devices().entries or ()
    assert entry == checkpoints.DeviceEntry(
        "uid-1", "main", "net.example/nic", {0: ["nic-0"], 1: ["nic-0"], -1: ["nic-1"]}
    )


def test_an_ended_pod_stays_in_the_files_until_the_next_admission(node: Node) -> None:
    node.admit(pod_of("uid-1", container("main", gpu=1)))
    node.kubelet.terminated("uid-1")
    assert node.files.changed(node.kubelet), "CPUs are left for the reconcile loop"
    assert "uid-1" in node.cpus().entries
    assert "uid-1" in node.memory().entries
    node.admit(pod_of("uid-2", container("main")))
    assert set(node.cpus().entries) == set(node.memory().entries) == {"uid-2"}
    assert [entry.pod_uid for entry in node.devices().entries or ()] == ["uid-1"], "no container was given a device"
    node.admit(pod_of("uid-3", container("main", gpu=1)))
    assert [entry.pod_uid for entry in node.devices().entries or ()] == ["uid-3"]


def test_the_reconcile_loop_frees_the_cpus_of_an_ended_pod_and_nothing_else(node: Node) -> None:
    node.admit(pod_of("uid-1", container("main")))
    node.kubelet.terminated("uid-1")
    node.kubelet.sweep()
    node.files.reconciled(node.kubelet)
    assert node.cpus() == checkpoints.CpuManagerState("static", "0-15")
    assert "uid-1" in node.memory().entries
    assert not node.files.changed(node.kubelet)


def test_a_rejected_pod_leaves_what_its_first_containers_were_given_until_the_next_admission(node: Node) -> None:
    assert not node.admit(pod_of("uid-1", container("first"), container("second", cpu=32_000)))
    assert set(node.cpus().entries["uid-1"]) == {"first"}
    node.admit(pod_of("uid-2", container("main")))
    assert set(node.cpus().entries) == {"uid-2"}


def test_an_init_container_keeps_its_cpus_and_loses_its_memory_when_a_later_container_starts(node: Node) -> None:
    node.admit(pod_of("uid-1", container("init", "init", memory=4 * GI, cpu=4000), container("main")))
    assert node.memory().entries["uid-1"]["init"] == [checkpoints.MemoryEntry([0], "memory", 3 * GI)], (
        "less what main took over"
    )
    node.kubelet.containers_started("uid-1")
    node.files.changed(node.kubelet)
    assert set(node.memory().entries["uid-1"]) == {"main"}
    assert set(node.cpus().entries["uid-1"]) == {"init", "main"}


def test_a_device_that_becomes_unhealthy_is_no_longer_registered(node: Node) -> None:
    node.kubelet.set_device_health("net.example/nic", "nic-0", healthy=False)
    node.files.changed(node.kubelet)
    assert (node.devices().registered or {})["net.example/nic"] == ["nic-1"]


def test_managers_with_policy_none_have_files_that_say_so(tmp_path: Path) -> None:
    node = node_of(tmp_path, policy="none", cpus="none", memory="None")
    node.admit(pod_of("uid-1", container("main")))
    assert (
        tmp_path / checkpoints.CPU_STATE
    ).read_bytes() == b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    assert node.memory() == checkpoints.MemoryManagerState("None", {})


def test_with_strict_cpu_reservation_reserved_cpus_are_not_in_the_shared_pool(tmp_path: Path) -> None:
    assert node_of(tmp_path, options="{strict-cpu-reservation: true}").cpus().shared == "1-15"


def test_a_file_that_does_not_change_is_not_written(node: Node) -> None:
    before = (node.directory / checkpoints.CPU_STATE).stat().st_ino
    shared = {"cpu": 100, "memory": GI}
    assert node.admit(pod_of("uid-1", Container("main", "app", {"cpu": 100}, {})))
    assert node.admit(pod_of("uid-2", Container("main", "app", shared, {})))
    assert (node.directory / checkpoints.CPU_STATE).stat().st_ino == before


def test_files_that_cannot_be_written_stop_nothing(node: Node) -> None:
    shutil.rmtree(node.directory)
    assert node.admit(pod_of("uid-1", container("main", gpu=1)))

"""Profiles: what is accepted, what becomes of it, and how a mistake is named."""

from pathlib import Path

import pytest
from kai_fleet.kubelet.machine import to_cpulist
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import bundled_profiles, load_profile, parse_profile
from kaicore.errors import ConfigurationError


@pytest.mark.parametrize(("name", "count"), [("mini", 3), ("demo24", 24), ("bench1000", 1000)])
def test_bundled_profiles_are_complete(name: str, count: int) -> None:
    assert name in bundled_profiles()
    specs = expand(load_profile(name))
    assert len({spec.name for spec in specs}) == count
    assert len({spec.internal_ip for spec in specs}) == count
    assert len({spec.pod_cidr for spec in specs}) == count


def test_demo24_mixes_policies_scopes_and_machines() -> None:
    specs = expand(load_profile("demo24"))
    assert {spec.config.topology_policy for spec in specs} == {"none", "best-effort", "restricted", "single-numa-node"}
    assert {spec.config.topology_scope for spec in specs} == {"pod", "container"}
    assert {spec.machine.zones for spec in specs} == {2, 4}
    assert {spec.group.nrt.publisher for spec in specs} == {"rte", "nfd", "none"}
    assert any(spec.config.static_memory for spec in specs)


def test_nodes_that_are_alike_share_a_machine() -> None:
    specs = expand(load_profile("bench1000"))
    assert len({id(spec.machine) for spec in specs}) == 1


def test_the_short_form_of_zones_becomes_cpus_memory_devices_and_amounts() -> None:
    spec = expand(load_profile("mini"))[0]
    assert [to_cpulist(zone) for zone in spec.machine.zone_cpus] == ["0-3,8-11", "4-7,12-15"]
    assert [device.id for device in spec.machine.devices["nvidia.com/gpu"]] == [f"gpu-0{n}" for n in range(8)]
    assert [device.zones for device in spec.machine.devices["nvidia.com/gpu"]] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert to_cpulist(spec.config.reserved_cpus) == "0"
    assert spec.config.allocatable["cpu"] == 15000
    assert spec.config.allocatable["memory"] == 64 * 1024**3 - 1024**3 - 100 * 1024**2
    assert spec.machine.distances == ((10, 21), (21, 10))


def test_consecutive_nodes_share_topology_domains() -> None:
    labels = [spec.labels["cloud.provider.com/topology-rack"] for spec in expand(load_profile("demo24"))]
    assert labels == [f"rack-{number // 4}" for number in range(24)]


def test_zones_may_be_written_out_with_cpu_ids_and_devices_of_several_zones() -> None:
    text = """
    groups:
      - name: a
        threadsPerCore: 1
        distances: [[10, 30], [30, 10]]
        zones:
          - {cpuIDs: "0,2,4,6", memory: 8Gi, hugepages: {1Gi: 4Gi}}
          - {cpuIDs: "1,3,5", memory: 16Gi, devices: {a.com/x: [{id: x9}, {id: x1, healthy: false}]}}
        devices:
          a.com/x: [{id: x5, zones: [0, 1]}]
          a.com/flat: 2
        extendedResources: {a.com/seat: 3}
    """
    (spec,) = expand(parse_profile(text, source="f"))
    assert [(d.id, d.zones, d.healthy) for d in spec.machine.devices["a.com/x"]] == [
        ("x1", 2, False),
        ("x5", 3, True),
        ("x9", 2, True),
    ]
    assert [d.zones for d in spec.machine.devices["a.com/flat"]] == [0, 0]
    assert spec.capacity["a.com/x"] == 3
    assert spec.config.allocatable["a.com/x"] == 2
    assert spec.config.allocatable["a.com/seat"] == 3
    assert spec.config.allocatable["hugepages-1Gi"] == 4 * 1024**3
    assert spec.machine.distance(0b11) == 20


GOOD = "groups: [{name: a, zones: 2, perZone: {cpus: 4, memory: 8Gi}%s}]"


def with_kubelet(**settings: str) -> str:
    return GOOD % (", kubelet: {" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["profile f: profile"]),
        ("groups: []", ["no groups"]),
        ("groups: [", ["is no YAML at line 2, column 1"]),
        ("groups: [{name: a, zones: 13, perZone: {cpus: 4, memory: 8Gi}}]", ["groups.0", "13 zones"]),
        ("groups: [{name: a, zones: []}]", ["groups.0", "0 zones"]),
        ("groups: [{name: A_b, zones: 2, perZone: {cpus: 4, memory: 8Gi}}]", ["groups.0.name", "'A_b'"]),
        ("groups: [{name: a, zones: 2}]", ["groups.0", "perZone"]),
        ("groups: [{name: a, zones: 2, perZone: {cpus: 4, memory: 1Xi}}]", ["groups.0.perZone.memory", "'1Xi'"]),
        ("groups: [{name: a, zones: 2, perZone: {cpus: 4, memory: -1}}]", ["groups.0.perZone.memory", "negative"]),
        ("groups: [{name: a, zones: 2, perZone: {cpus: 3, memory: 1Gi}}]", ["zones.0.cpus", "3", "whole cores"]),
        ("groups: [{name: a, zones: 2, perZone: {memory: 1Gi}}]", ["either cpus or cpuIDs"]),
        ("groups: [{name: a, zones: 2, perZone: {cpus: 4, memory: 1Gi, hugepages: {2Mi: 2Gi}}}]", ["hugepages exceed"]),
        (GOOD % ", flavour: big", ["groups.0.flavour", "'big'"]),
        (GOOD % ", timing: {runSeconds: soon}", ["groups.0.timing.runSeconds", "'soon'"]),
        (GOOD % ", sockets: 3", ["group a: sockets", "3"]),
        (GOOD % ", distances: [[10]]", ["group a: distances"]),
        (GOOD % ", devices: {a.com/x: [{id: x, zones: [5]}]}", ["devices.a.com/x", "'x'", "zone"]),
        (GOOD % ", devices: {a.com/x: [{id: x}, {id: x}]}", ["devices.a.com/x", "twice"]),
        (GOOD % ", devices: {gpu: 1}", ["groups.0.devices.gpu"]),
        (with_kubelet(topologyManagerPolicy="strict"), ["topologyManagerPolicy", "'strict'"]),
        (with_kubelet(cpuManagerPolicy="static"), ["kubeReserved.cpu", "reservation"]),
        (with_kubelet(cpuManagerPolicyOptions="{fast: true}"), ["cpuManagerPolicyOptions.fast"]),
        (with_kubelet(reservedSystemCPUs="0-99"), ["reservedSystemCPUs", "'0-99'"]),
        (with_kubelet(reservedSystemCPUs="a"), ["reservedSystemCPUs", "'a'"]),
        (with_kubelet(kubeReserved='{cpu: "99"}'), ["kubeReserved.cpu", "99000"]),
        (with_kubelet(kubeReserved="{memory: 99Gi}"), ["kubeReserved.memory"]),
        (
            with_kubelet(memoryManagerPolicy="Static", reservedMemory="[{numaNode: 0, limits: {memory: 1Gi}}]"),
            ["reservedMemory", "must be 104857600"],
        ),
        (with_kubelet(memoryManagerPolicy="Static", reservedMemory="[{numaNode: 7, limits: {}}]"), ["numaNode", "7"]),
        (with_kubelet(memoryManagerPolicy="Static", evictionHard="9Gi"), ["reservedMemory.0.memory"]),
        (
            with_kubelet(
                topologyManagerPolicy="single-numa-node",
                cpuManagerPolicy="static",
                kubeReserved='{cpu: "1"}',
                cpuManagerPolicyOptions="{align-by-socket: true}",
            ),
            ["cpuManagerPolicyOptions", "align-by-socket"],
        ),
        (
            "groups: [{name: a, zones: 9, sockets: 1, perZone: {cpus: 4, memory: 8Gi}, "
            "kubelet: {topologyManagerPolicy: restricted}}]",
            ["9", "more than 8 zones"],
        ),
        (
            "groups: [&one {name: a, zones: 1, perZone: {cpus: 4, memory: 8Gi}}, *one]",
            ["two nodes are named a-0"],
        ),
        (
            'groups: [{name: a, zones: [{cpuIDs: "0-1", memory: 8Gi}, {cpuIDs: "1-2", memory: 8Gi}]}]',
            ["zones.1.cpuIDs", "two zones"],
        ),
        ('groups: [{name: a, zones: [{cpuIDs: "0-1", memory: 8Gi}, {cpus: 2, memory: 8Gi}]}]', ["by id in all zones"]),
    ],
)
def test_a_mistake_is_named_with_file_field_and_value(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        expand(parse_profile(text, source="f"), source="f")
    assert "profile f" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD % "")
    assert len(expand(load_profile(str(file)))) == 1
    with pytest.raises(ConfigurationError, match=r"neither one of bench1000, demo24, mini nor a file"):
        load_profile(str(tmp_path / "other.yaml"))


def test_the_example_in_the_documentation_is_a_profile() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "fleet.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    specs = expand(parse_profile(example, source="docs/reference/fleet.md"))
    assert [spec.name for spec in specs] == [f"gpu-{number}" for number in range(8)]
    assert specs[0].group.timing.run_seconds == 3600


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("1m30s", 90), ("2h", 7200), ("3", 3), ("0.25", 0.25)])
def test_duration_is_read_in_microseconds(text: str, seconds: float) -> None:
    profile = parse_profile(GOOD % f", timing: {{runSeconds: {text}}}", source="f")
    assert profile.groups[0].timing.run_seconds == seconds

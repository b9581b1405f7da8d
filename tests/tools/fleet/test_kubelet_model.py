"""The invariants for every node and every sequence of pods, and cases that the recorded decisions do not reach."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kai_fleet.kubelet import Container, Device, Kubelet, KubeletConfig, Machine, Pod
from kai_fleet.kubelet.cpus import distributed, packed
from kai_fleet.kubelet.kubelet import allocatable, available
from kai_fleet.kubelet.machine import CpuTopology, bits, from_cpulist, highest, lowest, members, to_cpulist

from tests.given.examples import examples

GIB = 1024**3


def machine(zones: int = 2, cpus: int = 8, *, memory: int = 64, gpus: int = 4, threads: int = 2) -> Machine:
    cores = cpus // threads
    return Machine(
        zone_cpus=tuple(
            bits(thread * cores * zones + zone * cores + core for thread in range(threads) for core in range(cores))
            for zone in range(zones)
        ),
        zone_memory=tuple({"memory": memory * GIB} for _ in range(zones)),
        sockets=zones,
        threads_per_core=threads,
        devices={"nvidia.com/gpu": tuple(Device(f"gpu{z}{g}", 1 << z) for z in range(zones) for g in range(gpus))},
        distances=tuple(tuple(10 if a == b else 21 for b in range(zones)) for a in range(zones)),
    )


def pod(uid: str, cpu: int = 0, memory: int = 0, gpus: int = 0, *, kind: str = "app", **more: object) -> Pod:
    requests = {"cpu": cpu, "memory": memory * GIB, "nvidia.com/gpu": gpus}
    requests = {name: amount for name, amount in requests.items() if amount}
    return Pod(uid=uid, namespace="default", name=uid, containers=(Container("c0", "app", requests, requests),), **more)  # type: ignore[arg-type]


def static(policy: str = "restricted", scope: str = "container", **more: object) -> KubeletConfig:
    allocatable = {"cpu": 16000, "memory": 128 * GIB, "nvidia.com/gpu": 8, "pods": 110}
    settings = {"static_cpus": True, "static_memory": True, "allocatable": allocatable, **more}
    return KubeletConfig(topology_policy=policy, topology_scope=scope, **settings)  # type: ignore[arg-type]


# --- invariants -------------------------------------------------------------------------------------------------------

amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([250, 1000, 2000, 3000, 5000, 8000, 9000]),
        "memory": st.sampled_from([1, 5, 30, 64, 70]).map(lambda gib: gib * GIB),
        "nvidia.com/gpu": st.integers(0, 5),
    },
)


@st.composite
def pods(draw: st.DrawFn) -> tuple[Container, ...]:
    init = draw(st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), amounts), max_size=2))
    app = draw(st.lists(amounts, min_size=1, max_size=2))
    guaranteed = draw(st.booleans())
    containers = [*init, *(("app", one) for one in app)]

    def limits(requests: Mapping[str, int]) -> Mapping[str, int]:
        return requests if guaranteed else {name: amount for name, amount in requests.items() if "/" in name}

    return tuple(Container(f"{kind}{i}", kind, req, limits(req)) for i, (kind, req) in enumerate(containers))  # type: ignore[arg-type]


scenario = st.lists(st.one_of(pods(), st.integers(0, 7)), min_size=1, max_size=14)
configs = st.builds(
    static,
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    static_cpus=st.booleans(),
    static_memory=st.booleans(),
    reserved_cpus=st.sampled_from([0, 0b1, 0b10001]),
    cpu_options=st.sampled_from(
        [
            frozenset(),
            frozenset({"full-pcpus-only"}),
            frozenset({"distribute-cpus-across-numa"}),
            frozenset({"align-by-socket"}),
        ]
    ),
    preferred_allocation=st.sampled_from([frozenset(), frozenset({"nvidia.com/gpu"})]),
)


def play(kubelet: Kubelet, steps: list[tuple[Container, ...] | int], check: bool = False) -> list[object]:
    outcomes: list[object] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            alive = sorted(kubelet.pods)
            if alive:
                kubelet.terminated(alive[step % len(alive)])
        else:
            uid = f"p{number}"
            outcomes.append(kubelet.admit(Pod(uid=uid, namespace="ns", name=uid, containers=step)))
            kubelet.containers_started(uid)
        if check:
            assert_nothing_overcommitted(kubelet)
    return outcomes


def assert_nothing_overcommitted(kubelet: Kubelet) -> None:
    cpus, devices = 0, dict.fromkeys(kubelet.managers.devices.pools, 0)
    for uid, containers in kubelet.managers.cpus.assigned.items():
        of_pod = 0
        for held in containers.values():
            of_pod |= held
        assert not of_pod & cpus, "two pods share an exclusive CPU"
        assert not of_pod & kubelet.config.reserved_cpus
        assert not of_pod & kubelet.managers.cpus.shared
        cpus |= of_pod
        assert uid
    for containers_held in kubelet.managers.devices.assigned.values():
        mine = dict.fromkeys(devices, 0)
        for resources in containers_held.values():
            for resource, held in resources.items():
                mine[resource] |= held
        for resource, held in mine.items():
            assert not held & devices[resource], "two pods share a device"
            devices[resource] |= held
    assert {resource: held for resource, held in kubelet.managers.devices.in_use.items() if held} == {
        resource: held for resource, held in devices.items() if held
    }
    for zone in kubelet.managers.memory.zones:
        assert all(0 <= zone.free[kind] <= size for kind, size in zone.allocatable.items())
    for resource, amount in kubelet.used.items():
        assert 0 <= amount <= kubelet.config.allocatable.get(resource, 0)


@settings(max_examples=examples(150), deadline=None)
@given(configs, scenario)
def test_nothing_is_ever_given_twice(config: KubeletConfig, steps: list[tuple[Container, ...] | int]) -> None:
    play(Kubelet(machine(), config), steps, check=True)


@settings(max_examples=examples(100), deadline=None)
@given(configs, scenario)
def test_when_all_pods_are_gone_everything_is_free(
    config: KubeletConfig, steps: list[tuple[Container, ...] | int]
) -> None:
    kubelet = Kubelet(machine(), config)
    play(kubelet, steps)
    for uid in list(kubelet.pods):
        kubelet.terminated(uid)
    kubelet.sweep()
    assert not kubelet.managers.holders()
    assert kubelet.managers.cpus.shared == kubelet.machine.cpus.all
    assert not any(kubelet.managers.devices.in_use.values())
    assert not any(kubelet.used.values())
    for number, zone in enumerate(kubelet.managers.memory.zones):
        assert (zone.free, zone.assignments, zone.cells) == (zone.allocatable, 0, 1 << number)
    assert available(kubelet) == allocatable(kubelet)


@settings(max_examples=examples(60), deadline=None)
@given(configs, scenario)
def test_the_same_pods_in_the_same_order_get_the_same(
    config: KubeletConfig, steps: list[tuple[Container, ...] | int]
) -> None:
    one, other = Kubelet(machine(), config), Kubelet(machine(), config)
    assert play(one, steps) == play(other, steps)
    assert one.managers.cpus.assigned == other.managers.cpus.assigned
    assert one.managers.devices.assigned == other.managers.devices.assigned
    assert one.managers.memory.assigned == other.managers.memory.assigned


@given(st.sets(st.integers(0, 200)))
def test_cpu_lists_are_read_as_they_are_written(cpus: set[int]) -> None:
    assert from_cpulist(to_cpulist(bits(cpus))) == bits(cpus)
    assert sorted(cpus) == list(members(bits(cpus)))
    assert list(members(lowest(bits(cpus), 3))) == sorted(cpus)[:3]
    assert list(members(highest(bits(cpus), 3))) == sorted(cpus)[-3:]


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-x", "0-99999999"])
def test_a_bad_cpu_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a list|invalid literal"):
        from_cpulist(text)


@settings(deadline=None)
@given(
    zones=st.sampled_from([1, 2, 4]),
    sockets=st.sampled_from([1, 2, 4]),
    threads=st.sampled_from([1, 2]),
    taken=st.sets(st.integers(0, 31)),
    count=st.integers(0, 32),
    spread=st.booleans(),
)
def test_an_assignment_is_as_large_as_asked_and_inside_what_is_free(
    *, zones: int, sockets: int, threads: int, taken: set[int], count: int, spread: bool
) -> None:
    topology = CpuTopology(
        machine(zones, 32 // zones, threads=threads).zone_cpus, sockets=sockets, threads_per_core=threads
    )
    free = topology.all & ~bits(taken)
    if count > free.bit_count():
        return
    got = distributed(topology, free, count) if spread else packed(topology, free, count)
    assert got.bit_count() == count
    assert not got & ~free


# --- rejections -------------------------------------------------------------------------------------------------------


def test_six_gpus_and_ten_cpus_have_no_common_minimal_mask() -> None:
    kubelet = Kubelet(
        machine(cpus=16),
        static(static_memory=False, allocatable={"cpu": 32000, "memory": 1 << 50, "nvidia.com/gpu": 8, "pods": 9}),
    )
    rejection = kubelet.admit(pod("a", cpu=10000, memory=8, gpus=6))
    assert rejection is not None
    assert rejection.reason == "TopologyAffinityError"
    assert kubelet.admit(pod("b", cpu=24000, memory=8, gpus=6)) is None
    assert kubelet.affinities["b"]["c0"].mask == 0b11


def test_the_whole_node_is_checked_after_the_resource_managers() -> None:
    kubelet = Kubelet(
        machine(), static("none", static_memory=False, allocatable={"cpu": 3000, "memory": GIB, "pods": 2})
    )
    assert kubelet.admit(pod("a", cpu=2000)) is None
    rejection = kubelet.admit(pod("b", cpu=1500))
    assert rejection is not None
    assert (rejection.reason, rejection.message) == (
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1500, used: 2000, capacity: 3000",
    )
    assert kubelet.admit(pod("c")) is None
    out_of_pods = kubelet.admit(pod("d"))
    assert out_of_pods is not None
    assert out_of_pods.reason == "OutOfpods"


def test_an_extended_resource_that_the_node_never_had_is_not_the_kubelets_concern() -> None:
    kubelet = Kubelet(machine(), static("none"))
    unknown = Pod("u", "default", "u", (Container("c0", "app", {"acme.com/fpga": 3}, {"acme.com/fpga": 3}),))
    assert kubelet.admit(unknown) is None


def test_uneven_requests_are_rejected_under_full_pcpus_only() -> None:
    kubelet = Kubelet(
        machine(), static(cpu_options=frozenset({"full-pcpus-only"}), reserved_cpus=0b1, static_memory=False)
    )
    uneven = kubelet.admit(pod("a", cpu=3000, memory=1))
    assert uneven is not None
    assert (uneven.reason, uneven.message) == (
        "SMTAlignmentError",
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
    )
    # 16 CPUs, one reserved: its sibling is no whole core either.
    kubelet = Kubelet(
        machine(), static("none", cpu_options=frozenset({"full-pcpus-only"}), reserved_cpus=0b1, static_memory=False)
    )
    short = kubelet.admit(pod("b", cpu=16000, memory=1))
    assert short is not None
    assert "available physical CPUs = 14, requested CPUs = 16, CPUs per core = 2" in short.message


def test_a_selector_that_does_not_match_is_rejected() -> None:
    kubelet = Kubelet(machine(), static("none", labels={"pool": "a"}))
    rejection = kubelet.admit(pod("a", node_affinity=lambda labels: labels.get("pool") == "b"))
    assert rejection is not None
    assert rejection.reason == "NodeAffinity"


def test_a_host_port_is_given_once() -> None:
    kubelet = Kubelet(machine(), static("none"))
    assert kubelet.admit(pod("a", host_ports=frozenset({("0.0.0.0", "TCP", 80)}))) is None
    rejection = kubelet.admit(pod("b", host_ports=frozenset({("10.0.0.1", "TCP", 80)})))
    assert rejection is not None
    assert rejection.reason == "NodePorts"
    assert kubelet.admit(pod("c", host_ports=frozenset({("10.0.0.1", "UDP", 80)}))) is None


# --- what is kept until when ------------------------------------------------------------------------------------------


def test_what_a_pod_held_is_freed_at_the_head_of_the_next_admission() -> None:
    kubelet = Kubelet(machine(), static())
    assert kubelet.admit(pod("a", cpu=8000, memory=10, gpus=4)) is None
    kubelet.terminated("a")
    assert kubelet.managers.holders() == {"a"}
    assert kubelet.admit(pod("b", cpu=8000, memory=10, gpus=4)) is None
    assert kubelet.managers.holders() == {"b"}


def test_a_rejected_pod_leaves_its_first_containers_state_until_the_sweep() -> None:
    kubelet = Kubelet(machine(), static("single-numa-node"))
    small = {"cpu": 1000, "memory": GIB}
    large = {"cpu": 9000, "memory": GIB}
    rejected = kubelet.admit(
        Pod("a", "default", "a", (Container("c0", "app", small, small), Container("c1", "app", large, large)))
    )
    assert rejected is not None
    assert kubelet.managers.holders() == {"a"}
    kubelet.sweep()
    assert not kubelet.managers.holders()


def test_an_unhealthy_device_is_not_given_away_but_counts_for_the_width() -> None:
    kubelet = Kubelet(machine(), static(static_memory=False, static_cpus=False))
    kubelet.managers.devices.set_health("nvidia.com/gpu", "gpu00", healthy=False)
    assert allocatable(kubelet)["nvidia.com/gpu"] == [3, 4]
    assert kubelet.admit(pod("a", gpus=4)) is None
    assert kubelet.affinities["a"]["c0"].mask == 0b10
    assert kubelet.admit(pod("b", gpus=4)) is not None
    kubelet.managers.devices.set_health("nvidia.com/gpu", "gpu00", healthy=True)
    assert kubelet.admit(pod("c", gpus=4)) is None


def test_without_any_healthy_device_allocation_fails() -> None:
    kubelet = Kubelet(machine(gpus=1), static("none", static_memory=False, static_cpus=False))
    for device in ("gpu00", "gpu10"):
        kubelet.managers.devices.set_health("nvidia.com/gpu", device, healthy=False)
    rejection = kubelet.admit(pod("a", gpus=1))
    assert rejection is not None
    assert rejection.message == (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, "
        "which is unexpected"
    )
    with pytest.raises(KeyError):
        kubelet.managers.devices.set_health("nvidia.com/gpu", "nope", healthy=False)


def test_admitting_a_pod_twice_changes_nothing() -> None:
    kubelet = Kubelet(machine(), static())
    assert kubelet.admit(pod("a", cpu=2000, memory=1)) is None
    before = dict(kubelet.used)
    assert kubelet.admit(pod("a", cpu=2000, memory=1)) is None
    assert kubelet.used == before
    kubelet.terminated("nobody")
    kubelet.containers_started("nobody")


def test_memory_of_an_init_container_is_freed_when_a_later_container_starts() -> None:
    kubelet = Kubelet(machine(), static())
    big, small = {"cpu": 1000, "memory": 40 * GIB}, {"cpu": 1000, "memory": 10 * GIB}
    containers = (Container("i0", "init", big, big), Container("c0", "app", small, small))
    assert kubelet.admit(Pod("a", "default", "a", containers)) is None
    free = kubelet.managers.memory.zones[0].free["memory"]
    kubelet.containers_started("a", through="i0")
    assert kubelet.managers.memory.zones[0].free["memory"] == free
    kubelet.containers_started("a", through="c0")
    assert kubelet.managers.memory.zones[0].free["memory"] == free + 30 * GIB


def test_align_by_socket_prefers_masks_of_one_socket() -> None:
    four = machine(zones=4, cpus=4, gpus=0, threads=1)
    by_socket = Machine(four.zone_cpus, four.zone_memory, sockets=2, threads_per_core=1, distances=four.distances)
    config = static(static_memory=False, cpu_options=frozenset({"align-by-socket"}))
    kubelet = Kubelet(by_socket, config)
    hints = kubelet.managers.cpus.container_hints(p := pod("a", cpu=3000, memory=1), p.containers[0])
    assert hints is not None
    assert set(hints.preferred) == {0b0001, 0b0010, 0b0100, 0b1000, 0b0011, 0b1100}

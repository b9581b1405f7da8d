"""Volumes made beforehand: which one a claim that waits for its consumer gets, and where its pod may go for it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.reasons.node import VolumeOutOfReach
from kaicore.rules.model.pod import ClaimUse
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.storage import ZONE, claim, storage, using, volume
from tests.given.logs.replaying import replayed
from tests.given.work.workloads import Workloads

RWO = ("ReadWriteOnce",)


def local(cluster: Cluster, name: str, *hosts: str, capacity: int = 10, **more: Any) -> None:
    """A volume of the class that provisions nothing; of these nodes, or of all."""
    if hosts:
        more["node_affinity"] = ((Requirement("host", "In", hosts),),)
    bound_later = {"storage_class": "local", "phase": "Available", "access_modes": RWO}
    volume(cluster, name, capacity=capacity, **{**bound_later, **more})


def locals_of_a2(cluster: Cluster, **sizes: int) -> None:
    """Volumes of node a2, by name, with their capacity."""
    for name, capacity in sizes.items():
        local(cluster, name, "a2", capacity=capacity)


def kept(cluster: Cluster) -> None:
    """One volume that would do, and a larger one that is kept for the claim."""
    local(cluster, "small", "a1")
    local(cluster, "kept", "a2", capacity=50, claimed=True, claim="default/c")


def wanting(cluster: Cluster, name: str = "c", *, storage_class: str = "local", request: int = 10, **more: Any) -> None:
    claim(cluster, name, storage_class=storage_class, **{"access_modes": RWO, **more}, request=request)


def placed(cluster: Cluster) -> dict[str, tuple[str, dict[str, str], tuple[str, ...]]]:
    """The places of pods by the log, the volumes that they get and the claims to be provisioned."""
    decisions = [decode_payload(event) for event in cluster.events if event.type == "PodPlaced"]
    return {one.name: (one.node, one.volumes, one.claims) for one in decisions if isinstance(one, payloads.PodPlaced)}


#: What is there besides a claim of 10 bytes, and the volume that it gets.
CHOICES: dict[str, tuple[Callable[[Cluster], None], str | None]] = {
    "none": (lambda c: None, None),
    "one": (lambda c: local(c, "v", "a2"), "v"),
    "the smallest": (lambda c: locals_of_a2(c, v30=30, v9=9, v20=20, v40=40), "v20"),
    "of equals the first by name": (lambda c: locals_of_a2(c, c=10, b=10, a=10), "a"),
    "of another class": (lambda c: local(c, "v", "a2", storage_class="late"), None),
    "of another mode": (lambda c: local(c, "v", "a2", volume_mode="Block"), None),
    "for other access": (lambda c: local(c, "v", "a2", access_modes=("ReadOnlyMany",)), None),
    "for more access": (lambda c: local(c, "v", "a2", access_modes=("ReadOnlyMany", *RWO)), "v"),
    "claimed": (lambda c: local(c, "v", "a2", claimed=True, claim="default/other", phase="Bound"), None),
    "released": (lambda c: local(c, "v", "a2", phase="Released"), None),
    "about to go": (lambda c: local(c, "v", "a2", deleting=True), None),
    "kept for the claim, and larger": (kept, "kept"),
    "kept for one of that name that is no more": (
        lambda c: local(c, "v", "a2", claimed=True, claim="default/c", claim_uid="u-older"),
        None,
    ),
    "in a zone": (lambda c: local(c, "v", zones={ZONE: "b"}, node_affinity=((Requirement("host", "Exists"),),)), "v"),
    "of any node": (lambda c: local(c, "v"), "v"),
}


@pytest.mark.parametrize(("build", "name"), CHOICES.values(), ids=CHOICES)
def test_claim_gets_the_smallest_volume_that_fits(build: Callable[[Cluster], None], name: str | None) -> None:
    cluster = storage()
    build(cluster)
    wanting(cluster)
    using(cluster, "c")
    cluster.cycle()
    chosen = placed(cluster)
    assert [volumes for _, volumes, _ in chosen.values()] == ([] if name is None else [{"c": name}])
    if name is not None:
        affinity = cluster.state.constraints.volumes.volumes[name].node_affinity
        assert affinity is None or affinity[0][0].operator == "Exists" or chosen["p"][0] == "a2"


def test_labels_are_selected() -> None:
    cluster = storage()
    local(cluster, "plain", "a1")
    local(cluster, "fast", "a2", labels={"disk": "nvme"})
    wanting(cluster, selector=(Requirement("disk", "In", ("nvme",)),))
    using(cluster, "c")
    cluster.cycle()
    assert placed(cluster) == {"p": ("a2", {"c": "fast"}, ())}


def test_class_that_provisions_does_so_where_no_volume_is_left() -> None:
    cluster = storage()
    local(cluster, "v", "a2", storage_class="late")
    for name, host in (("c", "a2"), ("d", "a2"), ("e", "b1")):
        wanting(cluster, name, storage_class="late")
        using(cluster, name, name=name, node_selector={"host": host})
    cluster.cycle()
    assert placed(cluster) == {"c": ("a2", {"c": "v"}, ()), "d": ("a2", {}, ("d",)), "e": ("b1", {}, ("e",))}


def test_volume_outside_the_topology_of_its_class_is_taken() -> None:
    cluster = storage()
    local(cluster, "v", "a2", storage_class="zoned")
    wanting(cluster, storage_class="zoned")
    using(cluster, "c", node_selector={ZONE: "a"})
    wanting(cluster, "d", storage_class="zoned")
    using(cluster, "d", name="q", node_selector={ZONE: "a"})
    (pending,) = cluster.cycle().pending
    assert placed(cluster) == {"p": ("a2", {"c": "v"}, ())}
    out_of_reach = [reason.constraint for reason in pending.reasons if isinstance(reason, VolumeOutOfReach)]
    assert "topologies of storage class zoned" in out_of_reach


def test_claims_of_a_pod_get_different_volumes_on_one_node() -> None:
    cluster = storage()
    local(cluster, "a1-small", "a1")
    local(cluster, "a2-large", "a2", capacity=30)
    local(cluster, "a2-small", "a2", capacity=12)
    wanting(cluster, "large", request=20)
    wanting(cluster, "small")
    using(cluster, "large", "small")
    cluster.cycle()
    assert placed(cluster) == {"p": ("a2", {"small": "a2-small", "large": "a2-large"}, ())}


def test_a_volume_is_promised_until_the_decision_is_undone() -> None:
    cluster = storage()
    local(cluster, "v", "a2")
    for name in ("c", "d"):
        wanting(cluster, name)
    first = using(cluster, "c", name="1")
    (decision,) = cluster.cycle().placements
    using(cluster, "d", name="2")
    assert encode_state(decode_state(encode_state(cluster.state))) == encode_state(cluster.state)
    result = cluster.cycle()
    assert result.placements == ()
    (reason,) = result.pending[0].reasons
    assert (reason.code, reason.nodes) == ("NoVolumeLeft", 4)
    assert "no fitting volume of storage class local is left" in str(reason)
    failed = payloads.BindFailed(first.uid, "default", "1", decision.node, 0, "VolumeNotBound", "", 0)
    cluster.record(f"pod/{first.uid}", failed)
    cluster.delete_pod(first)
    assert [decision.name for decision in cluster.cycle().placements] == ["2"]
    assert placed(cluster)["2"] == ("a2", {"d": "v"}, ())


def test_pods_that_share_a_claim_share_its_volume() -> None:
    cluster = storage()
    for host in ("a1", "b1"):
        local(cluster, f"of-{host}", host)
    wanting(cluster)
    using(cluster, "c", name="1")
    using(cluster, "c", name="2")
    cluster.cycle()
    using(cluster, "c", name="3")
    cluster.cycle()
    assert placed(cluster) == dict.fromkeys("123", ("a1", {"c": "of-a1"}, ()))


def test_pods_of_one_class_take_one_volume_each_and_cycles_replay() -> None:
    cluster = storage()
    for host in ("a1", "a2", "b1"):
        local(cluster, f"of-{host}", host)
    for number in range(5):
        wanting(cluster, f"c{number}")
        using(cluster, f"c{number}", name=f"p{number}")
    result = cluster.cycle()
    assert sorted(decision.node for decision in result.placements) == ["a1", "a2", "b1"]
    (pending,) = result.pending
    assert {reason.code for reason in pending.reasons} == {"NoVolumeLeft"}
    assert sorted(volume for _, volumes, _ in placed(cluster).values() for volume in volumes.values()) == [
        "of-a1",
        "of-a2",
        "of-b1",
    ]
    assert replayed(cluster.events).differences == []


def test_room_that_is_kept_for_a_pod_comes_with_its_volume() -> None:
    cluster = storage()
    local(cluster, "v", "a2", "b1")
    for name in ("c", "d"):
        wanting(cluster, name)
    victim = cluster.add_pod(pod("victim", cpu=8, node_name="a2", phase="Running"))
    using(cluster, "c", cpu=8, priority=5, node_selector={"host": "a2"})
    first = cluster.cycle()
    assert [eviction.name for eviction in first.evictions] == ["victim"]
    using(cluster, "d", name="q")
    second = cluster.cycle()
    assert (second.placements, second.batches) == ((), ())
    cluster.delete_pod(victim)
    cluster.cycle()
    assert placed(cluster) == {"p": ("a2", {"c": "v"}, ())}


def test_no_pod_is_evicted_where_a_volume_is_missing() -> None:
    cluster = storage()
    local(cluster, "v", "a2")
    for name in ("c", "d"):
        wanting(cluster, name)
    using(cluster, "c", name="first")
    cluster.cycle()
    for host in ("a1", "a2", "b1", "x"):
        cluster.add_pod(pod(f"on-{host}", cpu=7, node_name=host, phase="Running"))
    using(cluster, "d", cpu=7, priority=5)
    assert cluster.cycle().batches == ()


def test_a_gang_that_cannot_start_leaves_its_volumes_to_others() -> None:
    cluster = Workloads()
    storage(cluster)
    for host in ("a1", "a2"):
        local(cluster, f"of-{host}", host)
    for name in ("c0", "c1", "c2", "other"):
        wanting(cluster, name)
    cluster.gang("g", 0, least=3)
    for number in range(3):
        cluster.members("g", [number], cpu=1, priority=5, claims=(ClaimUse(f"c{number}"),))
    using(cluster, "other")
    cluster.cycle()
    assert placed(cluster) == {"p": ("a1", {"other": "of-a1"}, ())}
    local(cluster, "of-b1", "b1")
    local(cluster, "of-x", "x")
    cluster.cycle()
    assert sorted(volumes[f"c{name[-1]}"] for name, (_, volumes, _) in placed(cluster).items() if name != "p") == [
        "of-a2",
        "of-b1",
        "of-x",
    ]


def test_a_decision_of_before_gave_no_volume() -> None:
    cluster = storage()
    local(cluster, "v", "a2")
    wanting(cluster)
    one = using(cluster, "c")
    cluster.cycle()
    (event,) = [event for event in cluster.events if event.type == "PodPlaced"]
    document = {key: value for key, value in msgspec.json.decode(event.body).items() if key != "volumes"}
    older = msgspec.structs.replace(event, schema=1, body=msgspec.json.encode(document))
    assert decode_payload(older) == msgspec.structs.replace(decode_payload(event), volumes={})
    story = story_of([event for event in cluster.events if event.stream == f"pod/{one.uid}"])
    assert story[-1].text.endswith("placed it on a2, claim c gets volume v")


@pytest.mark.parametrize("storage_class", ["local", "late"])
def test_claim_of_two_pods_nominated_together_gets_its_volume_when_they_start(storage_class: str) -> None:
    cluster = storage()
    for name in ("v1", "v2"):
        local(cluster, name, storage_class=storage_class)
    wanting(cluster, storage_class=storage_class)
    large = using(cluster, "c", name="large", cpu=8)
    cluster.cycle()
    using(cluster, "c", name="small")
    cluster.cycle()
    using(cluster, "c", name="urgent", priority=1)
    nominated = cluster.cycle().nominations
    assert {one.name for one in nominated} == {"small", "urgent"}
    failed = payloads.BindFailed(large.uid, "default", "large", nominated[0].node, 0, "VolumeNotBound")
    cluster.record(f"pod/{large.uid}", failed)
    cluster.cycle()
    volumes = placed(cluster)
    assert volumes["urgent"][1:] == volumes["small"][1:] == ({"c": "v1"}, ())

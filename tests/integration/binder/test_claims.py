"""Claims that wait for their first consumer are bound or provisioned where the pod goes, before it is bound."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kai_binder.writes.claims import Next, what_next, what_next_with
from kaicore.kube.normalize.storage import SELECTED_NODE_ANNOTATION
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim

from tests.given.servers.kube import CLAIMS, PODS, VOLUMES, Json, simulated
from tests.integration.binder.conftest import Scene

_SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "late"}


@pytest.mark.parametrize(
    ("bound", "node", "selected", "expected"),
    [
        (True, "", False, Next.DONE),
        (True, "n2", True, Next.DONE),
        (False, "", False, Next.SELECT),
        (False, "n1", False, Next.WAIT),
        (False, "n1", True, Next.WAIT),
        (False, "", True, Next.GIVE_UP),
        (False, "n2", False, Next.GIVE_UP),
    ],
)
def test_claim_needs_the_expected_write(bound: bool, node: str, selected: bool, expected: Next) -> None:
    claim = PersistentVolumeClaim("u", "default", "c", "1", volume="v", bound=bound, selected_node=node)
    assert what_next(claim, node="n1", selected=selected) is expected


@pytest.mark.parametrize(
    ("claim", "volume", "expected"),
    [
        ({}, {}, Next.SELECT),
        ({}, {"claimed": True, "claim": "default/c"}, Next.SELECT),
        ({}, {"claimed": True, "claim": "default/c", "claim_uid": "u"}, Next.WAIT),
        ({"volume": "v"}, {"claimed": True, "claim": "default/c", "claim_uid": "u"}, Next.WAIT),
        ({"volume": "v", "bound": True}, {"claimed": True, "claim": "default/c", "claim_uid": "u"}, Next.DONE),
        ({}, {"claimed": True, "claim": "default/c", "claim_uid": "older"}, Next.GIVE_UP),
        ({}, {"claimed": True, "claim": "default/d"}, Next.GIVE_UP),
        ({}, {"deleting": True}, Next.GIVE_UP),
        ({"deleting": True}, {}, Next.GIVE_UP),
        ({"volume": "other", "bound": True}, {}, Next.GIVE_UP),
        ({"selected_node": "n2"}, {}, Next.GIVE_UP),
    ],
)
def test_claim_and_volume_made_beforehand_need_the_expected_write(
    claim: dict[str, Any], volume: dict[str, Any], expected: Next
) -> None:
    wanted = PersistentVolumeClaim("u", "default", "c", "1", **claim)
    assert what_next_with(PersistentVolume("uv", "v", "1", **volume), wanted) is expected


@pytest.fixture
async def binding(log: PostgresLog, cluster_name: str) -> AsyncIterator[Scene]:
    """A scene with an API server that binds claims to the volumes that name them."""
    async with simulated(controllers=True) as api, Scene(api, log, cluster_name) as scene:
        yield scene


async def made(scene: Scene, name: str, **spec: Any) -> None:
    """A volume that is not claimed yet."""
    body = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late", **spec}
    await scene.api.post(VOLUMES, {"metadata": {"name": name}, "spec": body})


async def claimed(scene: Scene, name: str = "c") -> None:
    await scene.api.post(CLAIMS, {"metadata": {"name": name}, "spec": _SPEC})


async def selected(scene: Scene, name: str = "c") -> Json:
    """The claim, as soon as a node is named on it."""
    return await scene.api.until(
        f"{CLAIMS}/{name}", lambda claim: SELECTED_NODE_ANNOTATION in (claim["metadata"].get("annotations") or {})
    )


async def provisioned(scene: Scene, name: str) -> None:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    patch = {"metadata": {"annotations": annotations}, "spec": {"volumeName": f"pv-{name}"}}
    await scene.api.merge(f"{CLAIMS}/{name}", patch)


async def test_a_pod_is_bound_when_its_claims_are(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    for name in ("c", "d"):
        await claimed(scene, name)
    scene.start()
    await scene.decide((pod, "n1"), claims=("c", "d"))
    for name in ("c", "d"):
        claim = await selected(scene, name)
        assert claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION] == "n1"
        assert not (await scene.api.get(f"{PODS}/a"))["spec"].get("nodeName")
        await provisioned(scene, name)
    await scene.bound()


async def test_a_binder_that_comes_later_goes_on_waiting(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene)
    first = scene.start()
    await scene.decide((pod, "n1"), claims=("c",))
    await selected(scene)
    await first.kill()
    scene.start()
    await provisioned(scene, "c")
    await scene.bound()


async def test_a_provisioner_that_cannot_gives_the_pod_back(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene)
    scene.start()
    await scene.decide((pod, "n1"), claims=("c",))
    await selected(scene)
    await scene.api.merge(f"{CLAIMS}/c", {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: None}}})
    failed = await scene.failure()
    assert (failed.reason, failed.gone) == ("VolumeNotProvisioned", False)


async def test_patience_ends_and_missing_claims_are_told(scene: Scene) -> None:
    pods = [await scene.api.pod(name) for name in ("a", "b")]
    await claimed(scene)
    scene.start(volumes_give_up_s=0.2)
    await scene.decide((pods[0], "n1"), claims=("c",))
    await scene.decide((pods[1], "n2"), claims=("missing",))
    outcomes = await scene.outcomes(2)
    assert {name: (failed.reason, failed.code) for name, failed in outcomes.items()} == {
        "a": ("VolumeNotBound", 0),
        "b": ("NotFound", 404),
    }


async def test_answers_that_get_lost_and_conflicts_are_only_delays(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene)
    scene.api.faults(verb="patch", resource="persistentvolumeclaims", kind="conflict", times=2)
    scene.api.faults(verb="patch", resource="persistentvolumeclaims", kind="lost-answer", after=2, times=1)
    scene.start()
    await scene.decide((pod, "n1"), claims=("c",))
    await selected(scene)
    await provisioned(scene, "c")
    await scene.bound()


async def test_claims_are_bound_to_the_volumes_chosen_for_them(binding: Scene) -> None:
    pod = await binding.api.pod("a")
    for name in ("c", "d"):
        await claimed(binding, name)
    await made(binding, "v1")
    await made(binding, "v2", claimRef={"namespace": "default", "name": "other"})
    await binding.api.merge(f"{VOLUMES}/v2", {"spec": {"claimRef": {"name": "d"}}})
    binding.api.faults(verb="patch", resource="persistentvolumes", kind="conflict", times=1)
    binding.start()
    await binding.decide((pod, "n1"), volumes={"c": "v1", "d": "v2"})
    await binding.bound()
    for name, volume in (("c", "v1"), ("d", "v2")):
        claim, bound = await binding.api.get(f"{CLAIMS}/{name}"), await binding.api.get(f"{VOLUMES}/{volume}")
        assert (claim["spec"]["volumeName"], claim["status"]["phase"]) == (volume, "Bound")
        assert bound["status"]["phase"] == "Bound"
        assert bound["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert SELECTED_NODE_ANNOTATION not in claim["metadata"]["annotations"]
    chosen = await binding.api.get(f"{VOLUMES}/v1")
    assert chosen["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"


async def test_of_two_claims_for_one_volume_the_second_gives_its_pod_back(binding: Scene) -> None:
    pods = [await binding.api.pod(name) for name in ("a", "b")]
    for name in ("c", "d"):
        await claimed(binding, name)
    await made(binding, "v")
    binding.start()
    await binding.decide((pods[0], "n1"), volumes={"c": "v"})
    await binding.bound()
    await binding.decide((pods[1], "n2"), volumes={"d": "v"})
    failed = await binding.failure("b", count=2)
    assert (failed.reason, failed.message) == ("VolumeNotBound", "claim d cannot be bound to volume v any more")


async def test_a_claim_that_is_not_bound_gives_the_pod_back(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await scene.api.post(CLAIMS, {"metadata": {"name": "c"}, "spec": {**_SPEC, "volumeName": "v"}})
    await made(scene, "v", claimRef={"namespace": "default", "name": "c", "uid": "another"})
    scene.start(volumes_give_up_s=0.2)
    await scene.decide((pod, "n1"), volumes={"c": "v"})
    assert (await scene.failure()).reason == "VolumeNotBound"


@pytest.mark.parametrize("needs", [{"claims": ("c",)}, {"volumes": {"c": "pv-c"}}])
async def test_decisions_of_a_node_pass_one_that_waits_for_its_claim(scene: Scene, needs: dict[str, Any]) -> None:
    """So does another node's, though only one binding is under way at a time."""
    await claimed(scene)
    await made(scene, "pv-c")
    binder = scene.start(concurrency=1)
    await scene.decide((await scene.api.pod("stuck"), "n1"), **needs)
    await scene.decide((await scene.api.pod("a"), "n1"), (await scene.api.pod("b"), "n2"))
    assert set(await scene.outcomes(2)) == {"a", "b"}
    await provisioned(scene, "c")
    await scene.bound(3)
    assert binder.metric("open_decisions") == 0

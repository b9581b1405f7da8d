"""GPUs that are opened for shares, as the binder folds them: what is to be done follows from it alone."""

import msgspec
import pytest
from kai_binder.projection.gpu_groups import GpuGroups, GpuGroupsRecord, ShareStep, next_step
from kaicore.kube.normalize.gpu_shares import MANAGED_BY
from kaicore.rules.events.payloads import (
    BindFailed,
    GpuClosed,
    GpuOpened,
    Payload,
    PodDeleted,
    PodObserved,
    PodPlaced,
)
from kaicore.rules.model.gpu_share import GpuPart
from kaicore.rules.model.pod import Pod, QosClass

NAMESPACE = "kai-resource-reservation"


def opened(group: str = "g1", node: str = "n1") -> GpuOpened:
    return GpuOpened(node, group, NAMESPACE, f"gpu-reservation-{node}-{group}", "default/1")


def placed(uid: str = "a", *groups: str) -> PodPlaced:
    parts = tuple(GpuPart(group, 500) for group in groups or ("g1",))
    return PodPlaced(uid, "default", uid, "n1", "default/1", "class", gpus=parts)


def reservation(
    group: str = "g1", *, device: str = "", uid: str = "", phase: str = "Running", **fields: object
) -> Payload:
    pod = Pod(
        uid=uid or f"r-{group}",
        namespace=NAMESPACE,
        name=f"gpu-reservation-n1-{group}",
        resource_version="1",
        created_at=0,
        scheduler_name="default-scheduler",
        qos=QosClass.BEST_EFFORT,
        containers=(),
        phase=phase,
        node_name="n1",
        labels={"runai-gpu-group": group, **MANAGED_BY},
        annotations={"run.ai/reserve_for_gpu_index": device} if device else {},
    )
    return PodObserved(msgspec.structs.replace(pod, **fields))


def failed(uid: str = "a") -> BindFailed:
    return BindFailed(uid, "default", uid, "n1", 0, "why", "", 1)


def ended(uid: str = "a") -> PodObserved:
    pod = Pod(uid, "default", uid, "2", 0, "kai-ledger", QosClass.BEST_EFFORT, (), phase="Succeeded", node_name="n1")
    return PodObserved(pod)


def folded(*payloads: Payload) -> GpuGroups:
    """The groups that events make, the same also where a snapshot comes between any two of them."""
    groups = GpuGroups()
    again = GpuGroups()
    for payload in payloads:
        groups.fold(payload)
        again.fold(payload)
        again = GpuGroups(msgspec.msgpack.decode(msgspec.msgpack.encode(again.record()), type=GpuGroupsRecord))
    assert again.record() == groups.record()
    assert {gpu.group for gpu in again.unused()} == {gpu.group for gpu in groups.unused()}
    return again


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ((opened(),), ShareStep.RESERVE),
        ((opened(), reservation()), ShareStep.WAIT),
        ((opened(), reservation(device="GPU-1")), ShareStep.TELL),
        ((opened(), reservation(phase="Failed", reason="UnexpectedAdmissionError")), ShareStep.GIVE_UP),
        ((opened(), reservation(device="GPU-1"), reservation(device="GPU-1", deletion_at=1)), ShareStep.GIVE_UP),
        ((opened(), reservation(device="GPU-1"), PodDeleted("r-g1", NAMESPACE, "r")), ShareStep.GIVE_UP),
        ((opened(), GpuClosed("n1", "g1", "Unused")), ShareStep.GIVE_UP),
        ((), ShareStep.GIVE_UP),
    ],
)
def test_next_step_of_a_share_follows_from_what_is_known_of_its_gpu(
    events: tuple[Payload, ...], step: ShareStep
) -> None:
    assert next_step(placed(), folded(*events).of(placed()))[0] is step


LOST = (PodDeleted("r-g1", NAMESPACE, "r"), reservation(phase="Failed", reason="Evicted"))


@pytest.mark.parametrize("lost", LOST)
def test_gpu_is_exposed_from_the_loss_of_its_reservation_pod_until_another_holds_the_same_gpu(lost: Payload) -> None:
    shared = folded(opened(), placed("b"), reservation(device="GPU-1"))
    assert shared.exposed() == []
    shared.fold(lost)
    (gpu,) = shared.exposed()
    assert (gpu.gone, gpu.over, gpu.shared) == (isinstance(lost, PodDeleted), not isinstance(lost, PodDeleted), "GPU-1")
    assert next_step(placed(), shared.of(placed()))[0] is ShareStep.GIVE_UP
    shared.fold(LOST[0])
    shared.fold(reservation(uid="anew"))
    assert (shared.exposed(), gpu.gone) == ([gpu], False)
    assert next_step(placed(), shared.of(placed()))[0] is ShareStep.WAIT
    shared.fold(reservation(uid="anew", device="GPU-1"))
    assert shared.exposed() == []
    assert next_step(placed(), shared.of(placed()))[0] is ShareStep.TELL


@pytest.mark.parametrize("uid", ["r-g1", "anew"])
def test_gpu_of_which_the_reservation_pod_holds_another_takes_no_pod_and_is_closed_after_its_last(uid: str) -> None:
    lost = LOST[:1] if uid == "anew" else ()
    astray = folded(opened(), placed("b"), reservation(device="GPU-1"), *lost, reservation(uid=uid, device="GPU-2"))
    (gpu,) = astray.exposed()
    assert (gpu.gone, gpu.over) == (False, False)
    step, why = next_step(placed(), astray.of(placed()))
    assert (step, why) == (
        ShareStep.GIVE_UP,
        "GPU group g1 on n1: its reservation pod holds GPU GPU-2, and its pods share GPU GPU-1",
    )
    astray.fold(ended("b"))
    assert (astray.exposed(), [one.group for one in astray.unused()]) == ([], ["g1"])
    astray.fold(GpuClosed("n1", "g1", "Unused"))
    assert list(astray.leftovers) == [uid]


def test_pod_with_several_parts_waits_for_all_of_its_gpus() -> None:
    both = placed("a", "g1", "g2")
    known = folded(opened("g1"), opened("g2"), reservation("g2", device="GPU-2"))
    assert next_step(both, known.of(both))[0] is ShareStep.RESERVE
    known.fold(reservation("g1"))
    assert next_step(both, known.of(both))[0] is ShareStep.WAIT
    known.fold(reservation("g1", device="GPU-1"))
    assert next_step(both, known.of(both))[0] is ShareStep.TELL
    assert [gpu.device for gpu in known.of(both)] == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize("over", [ended(), PodDeleted("a", "default", "a"), failed()])
def test_gpu_is_unused_when_the_last_of_its_pods_is_over(over: Payload) -> None:
    held = folded(opened(), placed("a"), placed("b"), over)
    assert [(gpu.group, gpu.holders) for gpu in held.opened.values()] == [("g1", ["b"])]
    assert held.unused() == []
    held.fold(ended("b"))
    assert [gpu.group for gpu in held.unused()] == ["g1"]


def test_gpu_that_nobody_was_placed_on_is_unused() -> None:
    assert [gpu.group for gpu in folded(opened()).unused()] == ["g1"]


def test_pod_that_is_placed_again_holds_a_part_once() -> None:
    held = folded(opened("g1"), opened("g2"), placed("a", "g1"), failed(), placed("a", "g2"))
    assert [gpu.group for gpu in held.unused()] == ["g1"]
    held.fold(ended())
    assert [gpu.group for gpu in held.unused()] == ["g1", "g2"]


def test_reservation_pod_of_a_closed_gpu_is_left_over_until_it_is_gone_also_if_it_is_seen_late() -> None:
    closed = GpuClosed("n1", "g1", "Unused")
    for events in ((opened(), reservation(), closed), (opened(), closed, reservation())):
        left = folded(*events)
        assert [(pod.uid, pod.namespace, pod.node) for pod in left.leftovers.values()] == [("r-g1", NAMESPACE, "n1")]
        left.fold(PodDeleted("r-g1", NAMESPACE, "r"))
        assert left.leftovers == {}


def test_pods_that_only_look_like_reservations_are_left_alone() -> None:
    closed = GpuClosed("n1", "g1", "Unused")
    of_kai = reservation("other", labels={"runai-gpu-group": "other"})
    elsewhere = reservation("g1", namespace="default", uid="x")
    assert folded(opened(), closed, of_kai, elsewhere).leftovers == {}
    twin = reservation("g1", uid="twin", name="another", device="GPU-9")
    held = folded(opened(), placed(), twin)
    assert held.of(placed())[0].device == ""
    assert list(held.leftovers) == ["twin"]

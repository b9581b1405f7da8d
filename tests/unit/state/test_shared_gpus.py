"""GPUs that are opened for sharing, folded from the log: reservations, parts, ends."""

from typing import Any

import msgspec
import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GPU_GROUP_LABEL, GpuPart, GpuShare
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GPU, Cluster, amounts, container, pod

GROUP = "0f0e0d0c-aaaa"
RESERVATION = ("kai-resource-reservation", "gpu-reservation-n1-0f0e0d0c")
HALF = GpuPart(GROUP, 500)


class Sharing(Cluster):
    """A node with two GPUs, one in each zone, and a GPU group on it."""

    compares_indexes = True

    def __init__(self) -> None:
        super().__init__("c1")
        self.add_node("n1", amounts(cpu=8, memory=32, gpu=1), amounts(cpu=8, memory=32, gpu=1))

    def open(self) -> None:
        zones = (ContainerPlacement("resource-reservation", zones=(ZoneAmount("node-1", {GPU: 1}),)),)
        placement = Placement(Provenance.PREDICTED, zones, init=())
        self.record("node/n1", payloads.GpuOpened("n1", GROUP, *RESERVATION, "c/1", placement))

    def close(self, reason: str = "Unused") -> None:
        self.record("node/n1", payloads.GpuClosed("n1", GROUP, reason))

    def share(self, name: str, *parts: GpuPart) -> Pod:
        one = self.add_pod(pod(name, cpu=1, gpu_share=GpuShare(milli=500)))
        placed = payloads.PodPlaced(one.uid, one.namespace, name, "n1", "c/1", "", gpus=parts)
        self.record(f"pod/{one.uid}", placed)
        return one

    def reservation(self, **changes: Any) -> Pod:
        namespace, name = RESERVATION
        seen: dict[str, Any] = {"node_name": "n1", "labels": {GPU_GROUP_LABEL: GROUP}, "scheduler_name": "default"}
        given = seen | {"namespace": namespace} | changes
        one = pod(given.pop("name", name), container("resource-reservation", gpu=1), **given)
        return self.add_pod(one)

    @property
    def free(self) -> list[int]:
        return [milli for milli, _ in self.state.columns.gpus.free(self.state.columns.row("n1"))]

    @property
    def gpus_used(self) -> tuple[int, list[int]]:
        """Whole GPUs that are used, of the node and by zone."""
        columns = self.state.columns
        row, column = columns.row("n1"), columns.zones.resources[GPU]
        return int(columns.used[row, columns.resources[GPU]]), columns.zones.used[row, :2, column].tolist()


def test_opened_gpu_is_held_as_predicted_and_its_parts_are_counted() -> None:
    made = Sharing()
    made.open()
    assert (made.gpus_used, made.free) == ((1, [0, 1]), [1000])
    made.share("a", HALF)
    made.share("b", GpuPart(GROUP, 300))
    assert (made.gpus_used, made.free) == ((1, [0, 1]), [200])


def test_real_reservation_pod_takes_the_place_of_the_planned_one() -> None:
    made = Sharing()
    made.open()
    one = made.reservation()
    assert (made.gpus_used, made.free) == ((1, [0, 1]), [1000])
    group = made.state.shared_gpus.groups[GROUP]
    assert (group.uid, group.planned, group.index) == (one.uid, False, "")
    made.reservation(resource_version="2", annotations={"run.ai/reserve_for_gpu_index": "1"})
    assert made.state.shared_gpus.groups[GROUP].index == "1"
    assert list(made.state.pods) == [one.uid]


def test_pod_that_is_only_labelled_like_a_reservation_holds_no_group() -> None:
    for changes in ({"namespace": "default"}, {"name": "other"}, {"node_name": "n2"}, {"labels": {}}):
        made = Sharing()
        made.open()
        made.reservation(**changes)
        assert made.state.shared_gpus.groups[GROUP].planned
        assert made.free == [1000]


def test_no_part_is_to_be_had_while_the_reservation_leaves_or_is_gone_or_the_group_is_closed() -> None:
    leaving, gone, closed = Sharing(), Sharing(), Sharing()
    for made in (leaving, gone, closed):
        made.open()
        made.share("a", HALF)
    leaving.reservation(deletion_at=1)
    gone.delete_pod(gone.reservation())
    closed.close()
    assert (leaving.free, gone.free, closed.free) == ([], [], [])
    assert [made.gpus_used[0] for made in (leaving, gone, closed)] == [1, 0, 0]
    # What is left of it holds until it ends; then nobody knows the group any more.
    assert closed.state.shared_gpus.groups[GROUP].parts == {"uid-a": HALF}
    closed.delete_pod(closed.state.pods["uid-a"].pod)
    assert not closed.state.shared_gpus.groups


def shared(made: Sharing, gpu: str = "0") -> Pod:
    """Open a GPU that its reservation pod has found, and have a pod share it."""
    made.open()
    one = made.reservation(annotations={"run.ai/reserve_for_gpu_index": gpu})
    made.share("a", HALF)
    return one


def exposed(made: Sharing) -> bool:
    """True if the node gives no whole GPUs, and the pod that shares one counts as misplaced."""
    columns, state = made.state.columns, made.state
    row = columns.row("n1")
    groups = [group.opened.group for group in state.shared_gpus.exposed]
    assert bool(groups) == bool(columns.gpus.exposed_on(row)) == bool(columns.gpus.exposed(row + 1)[row])
    assert state.misaligned == ({"uid-a"} if groups else set())
    return bool(groups)


@pytest.mark.parametrize("how", ["deleted", "failed"])
def test_gpu_that_lost_its_reservation_is_exposed_until_a_new_pod_holds_the_same_gpu(how: str) -> None:
    made = Sharing()
    one = shared(made)
    assert not exposed(made)
    if how == "deleted":
        made.delete_pod(one)
    else:
        made.add_pod(msgspec.structs.replace(one, phase="Failed", resource_version="3"))
        made.delete_pod(made.state.pods[one.uid].pod)
    assert (exposed(made), made.free) == (True, [])
    assert "no reservation pod kai-resource-reservation/gpu-reservation-n1-0f0e0d0c holds it" in (
        made.state.pods["uid-a"].misaligned
    )
    anew = made.reservation(uid="anew", resource_version="4")
    assert (exposed(made), made.free) == (True, []), "nobody knows yet which GPU it got"
    made.add_pod(msgspec.structs.replace(anew, annotations={"run.ai/reserve_for_gpu_index": "0"}))
    assert (exposed(made), made.free) == (False, [500])
    assert made.gpus_used[0] == 1


@pytest.mark.parametrize("same_uid", [True, False])
def test_gpu_stays_exposed_while_the_reservation_holds_another_until_its_last_pod_is_over(same_uid: bool) -> None:
    made = Sharing()
    one = shared(made)
    if not same_uid:
        made.delete_pod(one)
    uid = one.uid if same_uid else "anew"
    made.reservation(uid=uid, resource_version="4", annotations={"run.ai/reserve_for_gpu_index": "1"})
    assert (exposed(made), made.free) == (True, [])
    assert "shares GPU 0 of n1" in made.state.pods["uid-a"].misaligned
    assert "holds GPU 1" in made.state.pods["uid-a"].misaligned
    restored = decode_state(encode_state(made.state))
    assert encode_state(restored) == encode_state(made.state)
    assert restored.columns.gpus.exposed_on(restored.columns.row("n1")) == [GROUP]
    made.delete_pod(made.state.pods["uid-a"].pod)
    assert not exposed(made)
    made.close()
    assert not exposed(made)


def test_part_is_free_again_once_its_pod_has_ended_or_was_not_bound() -> None:
    made = Sharing()
    made.open()
    one, other = made.share("a", HALF), made.share("b", HALF)
    assert made.free == [0]
    about = {"uid": one.uid, "namespace": one.namespace, "name": one.name, "node": "n1", "message": ""}
    made.record(f"pod/{one.uid}", payloads.BindFailed(**about, attempts=1, code=409, reason="Conflict"))
    assert made.free == [500]
    made.add_pod(msgspec.structs.replace(other, node_name="n1", phase="Running"))
    assert made.free == [500]
    made.add_pod(msgspec.structs.replace(other, node_name="n1", phase="Succeeded"))
    assert made.free == [1000]


def test_reservation_leaves_with_the_last_of_its_pods_and_stays_with_a_new_one() -> None:
    made = Sharing()
    made.open()
    first, second = made.share("a", HALF), made.share("b", GpuPart(GROUP, 300))
    uid = made.reservation().uid
    for one, ends in ((first, False), (second, True)):
        made.add_pod(msgspec.structs.replace(one, node_name="n1", phase="Running", deletion_at=1))
        assert (made.state.pods[uid].releasing, made.free) == (ends, [] if ends else [200])
    restored = decode_state(encode_state(made.state))
    assert encode_state(restored) == encode_state(made.state)
    assert restored.columns.gpus.free(restored.columns.row("n1")) == []
    made.share("c", GpuPart(GROUP, 200))
    assert (made.state.pods[uid].releasing, made.free) == (False, [0])
    for name in "abc":
        made.delete_pod(made.state.pods[f"uid-{name}"].pod)
    assert (made.state.pods[uid].releasing, made.free) == (False, [1000])


def test_reservation_pods_count_for_no_queue() -> None:
    made = Sharing()
    made.open()
    assert made.state.pods[f"gpu-group/{GROUP}"].queue_charge is None
    assert made.state.pods[made.reservation().uid].queue_charge is None


def test_state_with_groups_is_the_same_after_a_snapshot() -> None:
    made = Sharing()
    made.open()
    made.share("a", HALF)
    restored = decode_state(encode_state(made.state))
    assert encode_state(restored) == encode_state(made.state)
    assert restored.columns.gpus.free(restored.columns.row("n1")) == [(500, GROUP)]
    events = len(made.events)
    made.reservation()
    made.close()
    restored.fold_all(made.events[events:])
    assert encode_state(restored) == encode_state(made.state)

"""Statuses of PodGroups are written into them, on a simulated API server."""

import json
from collections.abc import Callable

import aiohttp
import msgspec
import pytest
from kaicore.errors import unheard
from kaicore.kube.kinds.table import GROUP_KINDS
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS as POD_RESOURCE
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import (
    AlonePending,
    ClassPending,
    ConfigRecorded,
    CycleCompleted,
    GroupPending,
    GroupSourceObserved,
    PodObserved,
    PodsLeftWaiting,
    WaitingPod,
)
from kaicore.rules.events.reasons.making_room import NeverPreempts
from kaicore.rules.events.reasons.node import InsufficientResource
from kaicore.rules.events.reasons.queue import OverLimit
from kaicore.rules.events.reasons.reason import Reason

from tests.given.servers.kube import PODS, Json
from tests.integration.binder.conftest import Scene

SIGS, VOLCANO, KAI = "scheduling.sigs.k8s.io", "scheduling.volcano.sh", "scheduling.run.ai"

#: Of all pods.
_CLASS = "0123456789ab"


SHORT = InsufficientResource(nodes=3, example="n1", resource="nvidia.com/gpu", requested=1)


class Groups:
    """A scene with PodGroups of one dialect, and the facts that a watcher would record of them."""

    def __init__(self, scene: Scene, group: str, path: str) -> None:
        self.scene = scene
        self.path = path
        self._kind = next(kind for kind in GROUP_KINDS if kind.name == f"PodGroup.{group}")

    async def configured(self, name: str = "kai-ledger") -> None:
        """A scheduler of this name has begun."""
        config = EngineConfig(scheduler_name=name)
        await self.scene.append(("config", ConfigRecorded(config.digest(), "default", config.document())))

    async def group(self, name: str, **spec: object) -> Json:
        made = await self.scene.api.post(self.path, {"metadata": {"name": name}, "spec": spec})
        source = self._kind.normalize(
            self._kind.resource.at(self._kind.resource.versions[0]).decode(msgspec.json.encode(made)), unheard
        )
        await self.scene.append((name, GroupSourceObserved(source)))
        return made

    async def pod(self, name: str, *, group: str, **labels: str) -> Json:
        made = await self.scene.api.pod(name, labels={"pod-group.scheduling.sigs.k8s.io": group, **labels})
        await self.saw(made)
        meta = made["metadata"]
        left = WaitingPod(
            meta["uid"], "default", name, _CLASS, f"{self._kind.name}/default/{group}", alone=True, queue="", priority=0
        )
        await self.scene.append((meta["uid"], PodsLeftWaiting("default", (left,))))
        return made

    async def saw(self, made: Json, **status: str) -> None:
        """Record a pod, with a status of its own if given."""
        decoded = POD_RESOURCE.decode(json.dumps({**made, "status": status} if status else made))
        await self.scene.append((made["metadata"]["uid"], PodObserved(normalize_pod(decoded))))

    async def why(self, reason: Reason, *, alone: Reason | None = None) -> None:
        """A cycle left pods unplaced."""
        others = () if alone is None else (AlonePending("", 0, (alone,)),)
        pending = (ClassPending(_CLASS, 1, (reason,), others),)
        cycle = CycleCompleted("default/1", "default", 0, "", "1", 0, "", 1, 0, pending)
        await self.scene.append(("cycle", cycle))

    async def told_of(self, key: str, *reasons: Reason) -> None:
        """A cycle left a group waiting for reasons of its own, or without reasons takes that back."""
        groups = (GroupPending(key, len(reasons), reasons),)
        cycle = CycleCompleted("default/2", "default", 0, "", "1", 0, "", 1, 0, (), groups=groups)
        await self.scene.append(("cycle", cycle))

    async def until(self, name: str, holds: Callable[[Json], object]) -> Json:
        """Wait until something holds for a group's status."""
        shown = await self.scene.api.until(f"{self.path}/{name}", lambda group: holds(group.get("status", {})))
        return shown["status"]  # type: ignore[no-any-return]


@pytest.fixture
async def groups(scene: Scene) -> Groups:
    return Groups(scene, SIGS, await scene.api.install_pod_groups(SIGS))


def condition(status: Json) -> tuple[str, str]:
    (only,) = status["conditions"]
    return only["status"], only["reason"]


async def test_status_of_a_gang_follows_it_from_its_first_pod_to_its_end(groups: Groups, scene: Scene) -> None:
    scene.start()
    await groups.configured()
    await groups.group("g", minMember=2)
    a = await groups.pod("a", group="g")
    status = await groups.until("g", lambda status: status.get("phase"))
    assert (status["phase"], condition(status)) == ("Pending", ("False", "NotEnoughPods"))
    b = await groups.pod("b", group="g")
    await groups.why(SHORT)
    status = await groups.until("g", lambda status: "nvidia.com/gpu" in status["conditions"][0]["message"])
    assert (status["phase"], condition(status)) == ("PreScheduling", ("False", "Unschedulable"))
    assert status["conditions"][0]["message"].startswith(
        "2 wait, 2 must start together: 3 nodes short of nvidia.com/gpu"
    )
    await scene.decide((a, "n1"), (b, "n2"))
    status = await groups.until("g", lambda status: status["phase"] == "Scheduled")
    assert condition(status) == ("True", "Scheduled")
    for made in (a, b):
        await groups.saw(await scene.api.get(f"{PODS}/{made['metadata']['name']}"), phase="Running")
    status = await groups.until("g", lambda status: status["phase"] == "Running")
    assert (status["running"], status["scheduled"]) == (2, 2)
    for made in (a, b):
        await groups.saw(await scene.api.get(f"{PODS}/{made['metadata']['name']}"), phase="Succeeded")
    status = await groups.until("g", lambda status: status["phase"] == "Finished")
    assert (status["running"], status["succeeded"]) == (0, 2)


async def test_what_keeps_the_group_itself_goes_before_what_keeps_its_pods_and_those_that_start_alone(
    groups: Groups, scene: Scene
) -> None:
    scene.start()
    await groups.configured()
    await groups.group("g", minMember=2)
    for name in "ab":
        await groups.pod(name, group="g")
    await groups.told_of(f"PodGroup.{SIGS}/default/g", OverLimit(resource="gpu", requested=2, queue="team"))
    await groups.until("g", lambda status: "queue team would be 2 gpu over" in str(status.get("conditions")))
    await groups.why(SHORT)
    await groups.told_of(f"PodGroup.{SIGS}/default/g")
    await groups.until("g", lambda status: "3 nodes short of" in str(status.get("conditions")))
    await groups.group("one-by-one", minMember=1)
    await groups.pod("c", group="one-by-one")
    await groups.why(SHORT, alone=NeverPreempts())
    await groups.until("one-by-one", lambda status: "policy is Never" in str(status.get("conditions")))


async def test_another_schedulers_groups_are_left_alone(groups: Groups, scene: Scene) -> None:
    binder = scene.start()
    await groups.configured("somebody-else")
    await groups.group("theirs", minMember=1)
    await groups.pod("a", group="theirs")
    await groups.group("nobodys", minMember=1)
    await groups.configured()
    await groups.until("theirs", lambda status: status.get("phase"))
    assert "status" not in await scene.api.get(f"{groups.path}/nobodys")
    await binder.stop()
    # Volcano's jobs make their pods when their group is let in, so an operator may say that all groups are ours.
    scene.start(empty_groups=True)
    await groups.until("nobodys", lambda status: status.get("phase"))


@pytest.mark.parametrize("subresource", [True, False])
async def test_status_is_written_with_and_without_a_status_subresource(scene: Scene, subresource: bool) -> None:
    path = await scene.api.install_pod_groups(VOLCANO, status=subresource)
    groups = Groups(scene, VOLCANO, path)
    scene.start(empty_groups=True)
    await groups.group("g", minMember=2)
    status = await groups.until("g", lambda status: status.get("phase"))
    assert (status["phase"], status["conditions"][0]["reason"]) == ("Inqueue", "NotEnoughTasks")


async def test_a_binder_goes_on_where_another_ended(groups: Groups, scene: Scene) -> None:
    binder = scene.start(snapshot_events=1)
    await groups.configured()
    await groups.group("g", minMember=1)
    a = await groups.pod("a", group="g")
    await groups.until("g", lambda status: status.get("phase"))
    await binder.stop()
    # The next one knows from the snapshot what the status says, and from the log what it should say now.
    scene.start()
    await scene.decide((a, "n1"))
    await groups.until("g", lambda status: status["phase"] == "Scheduled")


async def test_group_statuses_can_be_switched_off(groups: Groups, scene: Scene) -> None:
    binder = scene.start(group_statuses=False)
    await groups.configured()
    await groups.group("g", minMember=1)
    a = await groups.pod("a", group="g")
    await scene.decide((a, "n1"))
    await scene.outcomes(1)
    await binder.stop()
    assert "status" not in await scene.api.get(f"{groups.path}/g")
    assert binder.metric("side_writes_total", kind="group-status", result="written") == 0


@pytest.mark.parametrize(
    ("group", "label", "phase"),
    [
        (SIGS, {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}, "Pending"),
        (VOLCANO, {"annotations": {"scheduling.k8s.io/group-name": "g"}}, "Inqueue"),
        (KAI, {"annotations": {"pod-group-name": "g"}}, "Pending"),
    ],
)
async def test_kubectl_get_podgroup_of_a_waiting_group_prints_phase_size_and_why(
    scene: Scene, group: str, label: Json, phase: str
) -> None:
    groups = Groups(scene, group, await scene.api.install_pod_groups(group))
    scene.start()
    await groups.configured()
    await groups.group("g", minMember=2)
    pod = {"metadata": {"name": "a", **label}, "spec": {"schedulerName": "kai-ledger", "containers": [{"name": "m"}]}}
    pod["spec"]["containers"][0]["image"] = "x"
    await groups.saw(await scene.api.post(PODS, pod))
    await groups.until("g", lambda status: status.get("conditions"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    headers = {"Accept": accept, "Authorization": f"Bearer {scene.api.server.admin_token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{scene.api.server.http_url}{groups.path}") as response,
    ):
        table = await response.json()
    columns = [column["name"] for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    printed = dict(zip(columns, row["cells"], strict=True))
    assert printed.get("Phase", printed.get("Status")) == phase
    assert printed["MinMember"] == 2
    assert printed["Why"] == "1 pods are there, 2 must start together"
    assert {"Running", "Succeeded", "Failed", "Age"} <= set(columns)

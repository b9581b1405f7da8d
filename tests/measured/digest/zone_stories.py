"""Random stories of what kubelets give to pods, and of volumes."""

from random import Random
from typing import Any

import msgspec

from tests.given.cluster.factory import amounts, container, pod
from tests.given.cluster.storage import claim, storage, volume
from tests.measured.digest.engine import (
    ClaimUse,
    Container,
    ContainerKind,
    ContainerPlacement,
    EngineConfig,
    Placement,
    Provenance,
    QosClass,
    Recorder,
    Requirement,
    ZoneAmount,
    payloads,
    topology,
)
from tests.measured.digest.stories import POLICIES, Story, config

KINDS = (ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR)
HOSTS = ("a1", "a2", "b1", "x")
MODES = ("ReadOnlyMany", "ReadWriteOnce")


def zones(recorder: Recorder, random: Random) -> None:
    """Containers of every kind on zones of every policy; facts come while cycles run, and contradict predictions."""
    _Zones(recorder, random).tell()


class _Zones(Story):
    def __init__(self, recorder: Recorder, random: Random) -> None:
        super().__init__(recorder, random, config(random) if random.random() < 0.5 else EngineConfig())
        self.layout: dict[str, tuple[list[dict[str, int]], str, str]] = {}
        self.predicted: dict[str, Any] = {}
        for number in range(random.randint(1, 3)):
            held = [
                amounts(
                    cpu=random.randint(2, 16),
                    memory=random.randint(4, 64),
                    gpu=random.randint(0, 4),
                    nic=random.randint(0, 2),
                )
                for _ in range(random.randint(1, 4))
            ]
            policy, scope = random.choice(POLICIES), random.choice(("container", "pod"))
            self.layout[f"n{number}"] = (held, policy, scope)
            recorder.add_node(f"n{number}", *held, policy=policy, scope=scope)

    def tell(self) -> None:
        random = self.random
        for _ in range(random.randint(2, 5)):
            for _ in range(random.randint(1, 3)):
                self._pods()
            happens = [self._happens] * random.randint(1, 3) if random.random() < 0.3 else []
            self.cycle(run=False, meanwhile=lambda happens=happens: [happen() for happen in happens] and None)
            for _ in range(random.randint(0, 4)):
                if uid := self.pick(self.placed):
                    self.bind(uid) if random.random() < 0.8 else self.bind_fails(uid)
            for _ in range(random.randint(0, 4)):
                self._happens()
        recorder = self.cluster
        recorder.now += 60_000_000
        self.cycle()
        self.cycle()

    def _pods(self) -> None:
        random = self.random
        containers: list[Container] = []
        for number in range(random.randint(1, 3)):
            held: dict[str, Any] = {
                "cpu": random.choice((0.5, 1, 2, 3, 5, 8, 12, 20)),
                "memory": random.choice((0, 1, 8, 20, 60)),
            }
            if random.random() < 0.5:
                held["gpu"] = random.randint(0, 6)
            if random.random() < 0.3:
                held["nic"] = random.randint(0, 2)
            containers.append(container(f"c{number}", random.choice(KINDS), **held))
        containers.sort(key=lambda one: one.kind is ContainerKind.APP)
        qos = random.choice((QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE))
        priority = random.randint(0, 1)
        for _ in range(random.randint(1, 4)):
            self.count += 1
            name = f"p{self.count}"
            self.add(pod(name, *containers, qos=qos, priority=priority, created_at=self.count))

    def _happens(self) -> None:
        random = self.random
        what = random.choice(("delete", "finish", "reject", "observe", "foreign", "reshape", "restart", "time"))
        if what == "foreign":
            self.count += 1
            node = random.choice(sorted(self.layout))
            one = pod(f"f{self.count}", cpu=random.randint(1, 4), memory=1, scheduler_name="other")
            if self.count % 2:
                # Seen waiting: its zones are predicted.
                self.add(one)
            self.add(msgspec.structs.replace(one, node_name=node))
            self._charged(node, one.uid)
        elif what == "reshape":
            name = random.choice(sorted(self.layout))
            held, policy, scope = self.layout[name]
            less = [{**zone, "cpu": max(0, zone["cpu"] - 1000 * random.randint(0, 2))} for zone in held]
            self._topology(name, less, policy=policy, scope=scope)
        elif what == "time":
            self.cluster.now += 20_000_000
        elif what == "restart":
            self.cluster.restart()
        elif what == "delete" and (uid := self.pick(self.pods)):
            self.delete(uid)
        elif what == "finish" and (uid := self.pick(self.bound)):
            self.change(uid, phase="Succeeded")
            self.bound.pop(uid)
        elif what == "reject" and (uid := self.pick(self.bound)):
            one, node = self.pods[uid], self.bound.pop(uid)
            self.change(uid, phase="Failed", reason="TopologyAffinityError")
            rejected = payloads.PodRejected(uid, one.namespace, one.name, node, "TopologyAffinityError")
            self.cluster.record(f"pod/{uid}", rejected)
        elif what == "observe" and (uid := self.pick(self.bound)):
            self._observe(uid)

    def _topology(self, name: str, held: list[dict[str, int]], *, policy: str, scope: str) -> None:
        nrt = topology(name, *held, policy=policy, scope=scope, capacity={"cpu": 16_000})
        self.cluster.record(f"nrt/{name}", payloads.TopologyObserved(nrt))
        self._charged(name)

    def _charged(self, node: str, *uids: str) -> None:
        self.cluster.record(f"node/{node}", payloads.NodeCharged(node, "", uids))

    def _observe(self, uid: str) -> None:
        """A kubelet is seen to have given a pod's first container some CPU of one zone, or of two."""
        one, node = self.pods[uid], self.bound[uid]
        count = len(self.layout[node][0])
        taken = sorted({self.random.randrange(count) for _ in range(self.random.randint(1, 2))})
        amounts_of = tuple(ZoneAmount(f"node-{zone}", {"cpu": 1000}) for zone in taken)
        placement = Placement(Provenance.OBSERVED, (ContainerPlacement(one.containers[0].name, zones=amounts_of),))
        seen = payloads.PlacementObserved(uid, one.namespace, one.name, node, placement)
        self.cluster.record(f"pod/{uid}", seen)
        self._charged(node, uid)


def shared_volumes(recorder: Recorder, random: Random) -> None:
    """Like `volumes`; nearly all pods of a story share a claim, and what is placed is seldom bound."""
    volumes(recorder, random, sharing=0.95, happening=("bind", "fail", "fail", "fail", "delete", "time"))


def volumes(
    recorder: Recorder,
    random: Random,
    *,
    sharing: float = 0.4,
    happening: tuple[str, ...] = ("bind", "bind", "fail", "delete", "restart", "time"),
) -> None:
    """Claims, shared and not, and volumes that were made beforehand or are made for a node."""
    story = Story(recorder, random)
    storage(recorder)
    specs: dict[str, dict[str, Any]] = {}
    for number in range(random.randint(0, 6)):
        hosts = sorted({random.choice(HOSTS) for _ in range(random.randint(0, 2))})
        affinity = ((Requirement("host", "In", tuple(hosts)),),) if hosts else None
        specs[f"v{number}"] = {
            "storage_class": random.choice(("local", "local", "late", "zoned")),
            "capacity": random.randint(1, 4),
            "access_modes": random.choice(((MODES[1],), MODES)),
            "node_affinity": affinity,
        }
        volume(recorder, f"v{number}", phase="Available", **specs[f"v{number}"])
    claims: dict[str, dict[str, Any]] = {}
    given: dict[str, dict[str, str]] = {}
    for _ in range(random.randint(2, 4)):
        for _ in range(random.randint(0, 4)):
            _claiming(story, claims, sharing=sharing)
        before = len(recorder.events)
        story.cycle(run=False)
        _given(recorder, before, given)
        for _ in range(random.randint(0, 5)):
            what = random.choice(happening)
            if what == "restart":
                recorder.restart()
            elif what == "time":
                recorder.now += 5_000_000
            elif what == "delete" and (uid := story.pick(story.pods)):
                story.delete(uid)
            elif what == "fail" and (uid := story.pick(story.placed)):
                story.bind_fails(uid, "VolumeNotBound")
            elif what == "bind" and (uid := story.pick(story.placed)):
                for name, chosen in sorted(given.get(uid, {}).items()):
                    key = f"default/{name}"
                    claim(recorder, name, **claims[name], volume=chosen, bound=True)
                    volume(
                        recorder, chosen, **specs[chosen], phase="Bound", claimed=True, claim=key, claim_uid=f"u-{name}"
                    )
                story.bind(uid)
        before = len(recorder.events)
        story.cycle(run=False)
        _given(recorder, before, given)
    story.rest()


def _claiming(story: Story, claims: dict[str, dict[str, Any]], *, sharing: float) -> None:
    random = story.random
    names, shares = set(), random.random() < sharing
    for _ in range(random.randint(1, 2)):
        if not (shares and claims):
            name = f"c{len(claims) + 1}"
            claims[name] = {
                "storage_class": random.choice(("local", "local", "late", "zoned")),
                "request": random.randint(1, 4),
                "access_modes": random.choice(((MODES[1],), MODES)),
            }
            claim(story.cluster, name, **claims[name])
        names.add(f"c{len(claims)}")
    story.count += 1
    used = tuple(ClaimUse(name) for name in sorted(names))
    cpu, priority = random.choice((1, 1, 5, 8)), random.randint(0, 2)
    story.add(pod(f"p{story.count}", cpu=cpu, priority=priority, claims=used))


def _given(recorder: Recorder, before: int, given: dict[str, dict[str, str]]) -> None:
    for event in recorder.events[before:]:
        if event.type == "PodPlaced":
            body = recorder.decoded(event)
            given[body.uid] = dict(body.volumes)

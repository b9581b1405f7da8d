"""No volume is promised twice, and none is left while a claim waits that could have it, whatever happens."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.given.cluster.storage import claim, storage, using, volume
from tests.given.examples import examples

HOSTS = ("a1", "a2", "b1", "x")
MODES = ("ReadOnlyMany", "ReadWriteOnce")

volumes = st.fixed_dictionaries(
    {
        "storage_class": st.sampled_from(("local", "local", "late")),
        "capacity": st.integers(1, 4),
        "access_modes": st.sampled_from(((MODES[1],), MODES)),
        "hosts": st.sets(st.sampled_from(HOSTS), max_size=2).map(sorted),
    }
)
claims = st.fixed_dictionaries(
    {
        "storage_class": st.sampled_from(("local", "local", "late")),
        "request": st.integers(1, 4),
        "access_modes": st.sampled_from(((MODES[1],), MODES)),
    }
)
pods = st.fixed_dictionaries(
    {
        "claims": st.lists(claims, min_size=1, max_size=2),
        "shares": st.booleans(),
        "cpu": st.sampled_from((1, 1, 5, 8)),
        "priority": st.integers(0, 2),
    }
)
steps = st.lists(st.tuples(st.sampled_from(("bind", "fail", "delete", "restart")), st.integers(0, 99)), max_size=6)
rounds = st.lists(st.tuples(st.lists(pods, max_size=4), steps), min_size=1, max_size=3)


class Story:
    """A cluster in which pods ask for volumes, are placed, bound, given back and deleted."""

    def __init__(self) -> None:
        self.cluster = storage()
        self.pods: dict[str, Pod] = {}
        self.claims = 0

    def volume(self, number: int, *, hosts: list[str], **spec: Any) -> None:
        affinity = ((Requirement("host", "In", tuple(hosts)),),) if hosts else None
        volume(self.cluster, f"v{number}", phase="Available", node_affinity=affinity, **spec)

    def pod(self, spec: dict[str, Any]) -> None:
        names = []
        for wanted in spec["claims"]:
            if not (spec["shares"] and self.claims):
                self.claims += 1
                claim(self.cluster, f"c{self.claims}", **wanted)
            names.append(f"c{self.claims}")
        name = f"p{len(self.pods)}"
        names = sorted(set(names))
        one = using(self.cluster, *names, name=name, cpu=spec["cpu"], priority=spec["priority"])
        self.pods[one.uid] = one

    def cycle(self) -> None:
        result = self.cluster.cycle()
        state = self.cluster.state
        book = state.constraints.volumes
        holders: dict[str, str] = {}
        for entry in state.pods.values():
            wanting = {f"default/{use.name}" for use in entry.pod.claims}
            assert {f"default/{name}" for name in entry.volumes} <= wanting
            for name, volume_name in entry.volumes.items() if entry.charged else ():
                key = f"default/{name}"
                assert holders.setdefault(volume_name, key) == key, "a volume of two claims"
        assert len(set(holders.values())) == len(holders), "a claim with two volumes"
        for decision in result.placements:
            entry = state.pods[decision.uid]
            for name, volume_name in entry.volumes.items():
                given, asked = book.volumes[volume_name], book.claims[f"default/{name}"]
                assert given.storage_class == asked.storage_class
                assert given.capacity >= asked.request
                assert set(given.access_modes) >= set(asked.access_modes)
                assert self.reaches(volume_name, decision.node)
            local = [key for key in entry.pod.claims if book.claims[f"default/{key.name}"].storage_class == "local"]
            assert all(book.claims[f"default/{key.name}"].bound or key.name in entry.volumes for key in local)

    def nothing_is_left_for_those_who_wait(self) -> None:
        state = self.cluster.state
        book = state.constraints.volumes
        held = {one for entry in state.pods.values() if entry.charged for one in entry.volumes.values()}
        left = [one for one in book.volumes.values() if not one.claimed and one.name not in held]
        for uid in state.waiting:
            (use, *more) = state.pods[uid].pod.claims
            asked = book.claims[f"default/{use.name}"]
            if more or book.users.is_shared(asked.key) or asked.bound:
                continue
            assert asked.storage_class == "local"
            assert not any(
                one.storage_class == "local"
                and one.capacity >= asked.request
                and set(one.access_modes) >= set(asked.access_modes)
                for one in left
            )

    def reaches(self, name: str, node: str) -> bool:
        affinity = self.cluster.state.constraints.volumes.volumes[name].node_affinity
        return affinity is None or node in affinity[0][0].values

    def step(self, what: str, pick: int) -> None:
        entries = [self.cluster.state.pods[uid] for uid in sorted(self.pods) if uid in self.cluster.state.pods]
        placed = [entry for entry in entries if entry.stage is Stage.PLACED]
        if what == "restart":
            restored = decode_state(encode_state(self.cluster.state))
            assert encode_state(restored) == encode_state(self.cluster.state)
            self.cluster.state = restored
        elif what == "delete" and entries:
            self.cluster.delete_pod(entries[pick % len(entries)].pod)
        elif what in ("bind", "fail") and placed:
            entry = placed[pick % len(placed)]
            one, node = entry.pod, entry.node
            if what == "fail":
                failed = payloads.BindFailed(one.uid, one.namespace, one.name, node, 0, "VolumeNotBound", "", 0)
                self.cluster.record(f"pod/{one.uid}", failed)
                return
            for name, volume_name in entry.volumes.items():
                self.bound(name, volume_name)
            self.cluster.record(f"pod/{one.uid}", payloads.PodBound(one.uid, one.namespace, one.name, node))

    def bound(self, name: str, volume_name: str) -> None:
        book = self.cluster.state.constraints.volumes
        asked, given = book.claims[f"default/{name}"], book.volumes[volume_name]
        assert given.claim in ("", asked.key)
        bound = replace(asked, volume=volume_name, bound=True)
        self.cluster.record(f"pvc/{name}", payloads.PersistentVolumeClaimObserved(bound))
        held = replace(given, phase="Bound", claimed=True, claim=asked.key, claim_uid=asked.uid)
        self.cluster.record(f"pv/{volume_name}", payloads.PersistentVolumeObserved(held))


def play(made: list[dict[str, Any]], happenings: list[Any], **fixed: int) -> Story:
    story = Story()
    for number, spec in enumerate(made):
        story.volume(number, **spec)
    for arriving, happening in happenings:
        for spec in arriving:
            story.pod({**spec, **fixed})
        story.cycle()
        for what, pick in happening:
            story.step(what, pick)
        story.cycle()
    return story


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(volumes, max_size=6), rounds)
def test_no_volume_is_promised_twice(made: list[dict[str, Any]], happenings: list[Any]) -> None:
    play(made, happenings)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(volumes, max_size=6), st.lists(pods, max_size=6))
def test_where_there_is_room_no_volume_is_left(made: list[dict[str, Any]], arriving: list[dict[str, Any]]) -> None:
    play(made, [(arriving, [])], cpu=1, priority=0).nothing_is_left_for_those_who_wait()

"""Whatever happens to lists and watches, the reflector ends up with what is on the server.

The machine is a server with a history and a client that asks it as the reflector's core wants, while pages fail, tokens
and versions expire, watches break in the middle of a line, and events come twice or long after their time.
"""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api import reflector_core as reflecting
from kaicore.kube.wire.objects import NodeObject
from kaicore.kube.wire.resources import NODES

from tests.given.cluster import wire
from tests.given.examples import examples

NAMES = st.sampled_from(["a", "b", "c", "d"])
EXPIRED = ApiStatus(410, "Expired", "too old")
DOWN = ClusterUnavailable("connection reset")


class Server:
    """Objects under one version counter, with the events that led there."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 100
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, bytes]] = []
        self.snapshots: dict[str, list[dict[str, Any]]] = {}

    def commit(self, kind: str, name: str, uid: str, *, broken: bool = False) -> None:
        self.version += 1
        document = wire.node(name, uid=uid, version=str(self.version))
        if broken:
            document["spec"] = "nonsense"
        if kind == "DELETED":
            del self.objects[name]
        else:
            self.objects[name] = document
        self.events.append((self.version, line(kind, document)))

    def page(self, token: str, size: int) -> bytes:
        """A page; the token names a snapshot, the version it was taken at, and how much of it was sent."""
        version, _, sent = token.partition("/")
        items = self.snapshots.get(token, [self.objects[name] for name in sorted(self.objects)])
        version = version or str(self.version)
        rest = items[size:]
        following = f"{version}/{int(sent or 0) + size}" if rest else ""
        if following:
            self.snapshots[following] = rest
        metadata = {"resourceVersion": version, "continue": following}
        return msgspec.json.encode({"metadata": metadata, "items": items[:size]})

    def after(self, version: str) -> list[bytes]:
        if int(version) < self.compacted:
            raise EXPIRED
        return [data for number, data in self.events if number > int(version)]


def line(kind: str, document: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": document})


class ReflectorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.uids = 0
        self.core: reflecting.ReflectorCore[NodeObject] = reflecting.ReflectorCore(NODES)
        #: What a reader believes who looks at uids, and one who only goes by names.
        self.by_uid: dict[str, str] = {}
        self.by_name: dict[str, str] = {}
        self.gone: set[str] = set()
        self.shown: dict[str, int] = {}
        #: Lines that watches have brought: what may come again.
        self.delivered: list[bytes] = []

    @initialize(there=st.lists(NAMES, unique=True), believed=st.dictionaries(NAMES, st.booleans()))
    def begin(self, there: list[str], believed: dict[str, bool]) -> None:
        """Some objects are there, some are believed to be there, and not all beliefs are right."""
        for name in there:
            self.create(name)
        uids = {}
        for name, right in believed.items():
            uid = self.server.objects[name]["metadata"]["uid"] if right and name in there else f"earlier-{name}"
            uids[reflecting.ObjectKey("", name)] = uid
            self.by_uid[uid] = self.by_name[name] = name
        self.core = reflecting.ReflectorCore(NODES, known_uids=uids)

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        """An object appears, or changes."""
        if name in self.server.objects:
            self.server.commit("MODIFIED", name, self.server.objects[name]["metadata"]["uid"])
        else:
            self.uids += 1
            self.server.commit("ADDED", name, f"uid-{self.uids}")

    @rule(name=NAMES)
    def spoil(self, name: str) -> None:
        """An object changes into something that cannot be decoded."""
        if name in self.server.objects:
            self.server.commit("MODIFIED", name, self.server.objects[name]["metadata"]["uid"], broken=True)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.server.objects:
            self.server.commit("DELETED", name, self.server.objects[name]["metadata"]["uid"])

    @rule()
    def compact(self) -> None:
        """The server forgets its history."""
        self.server.compacted = self.server.version

    @rule(failure=st.sampled_from([EXPIRED, DOWN]))
    def fail(self, failure: Exception) -> None:
        assert isinstance(failure, ApiStatus | ClusterUnavailable)
        self.core.failed(failure)

    @rule(size=st.integers(1, 3), count=st.integers(0, 6), old=st.lists(st.integers(0, 30), max_size=3))
    def ask(self, size: int, count: int, old: list[int]) -> None:
        """The core gets a page, or so many lines of a watch with old ones among them before it breaks off."""
        request = self.core.request
        if isinstance(request, reflecting.ListPage):
            self.take(self.core.take_page(self.server.page(request.continue_token, size)), listed=True)
            return
        try:
            lines = self.server.after(request.resource_version)[:count]
        except ApiStatus as error:
            self.core.failed(error)
            return
        delivered = [*self.delivered, *lines]
        for index in old if self.delivered else ():
            lines.insert(index % (len(lines) + 1), self.delivered[-1 - index % len(self.delivered)])
        self.delivered = delivered
        self.take(self.core.take_lines(lines))
        self.core.ended(0.0)

    @rule(garbage=st.sampled_from([b"{", b'{"type":"ERROR","object":{"code":410}}', b'{"type":"ERROR","object":{}}']))
    def break_watch(self, garbage: bytes) -> None:
        """A watch brings what is no event."""
        if isinstance(self.core.request, reflecting.Watch):
            self.take(self.core.take_lines([garbage]))

    @rule()
    def mark(self) -> None:
        """A watch that has brought everything brings a bookmark."""
        request = self.core.request
        if isinstance(request, reflecting.Watch) and int(request.resource_version) >= self.server.compacted:
            data = line("BOOKMARK", {"metadata": {"resourceVersion": str(self.server.version)}})
            self.take(self.core.take_lines([*self.server.after(request.resource_version), data]))

    @invariant()
    def core_and_readers_agree(self) -> None:
        """The core's knowledge equals its reports, objects that were never readable aside."""
        uids = {key.name: item.uid for key, item in self.core.objects.items()}
        assert set(self.by_uid) <= set(uids.values())

    def take(self, changes: list[reflecting.Change[NodeObject]], *, listed: bool = False) -> None:
        for change in changes:
            match change:
                case reflecting.ObjectSeen(node):
                    uid = node.metadata.uid
                    version = int(node.metadata.resource_version)
                    assert listed or (uid not in self.gone and version > self.shown.get(uid, 0))
                    self.gone.discard(uid)
                    self.shown[uid] = version
                    self.by_uid[uid] = self.by_name[node.metadata.name] = node.metadata.name
                case reflecting.ObjectGone(key, uid):
                    self.gone.add(uid)
                    self.by_uid.pop(uid, None)
                    self.by_name.pop(key.name, None)
                case reflecting.ObjectRefused():
                    pass

    def teardown(self) -> None:
        """Without further faults, core and readers come to what is there."""
        for _ in range(100):
            if isinstance(self.core.request, reflecting.Watch) and self.core.request.resource_version == str(
                self.server.version
            ):
                break
            self.ask(3, 100, [])
        there = {name: item["metadata"]["uid"] for name, item in self.server.objects.items()}
        readable = {name for name, item in self.server.objects.items() if isinstance(item["spec"], dict)}
        assert {key.name: item.uid for key, item in self.core.objects.items()} == there
        for name, item in self.core.objects.items():
            assert item.resource_version == self.server.objects[name.name]["metadata"]["resourceVersion"]
        for name, uid in there.items():
            if name in readable:
                assert self.by_uid[uid] == name
                assert name in self.by_name
        assert set(self.by_uid) <= set(there.values())
        assert set(self.by_name) <= set(there)


ReflectorMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
TestReflector = ReflectorMachine.TestCase

"""Publisher of a node's NodeResourceTopology: it writes some time after a change, and periodically."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import MERGE_PATCH
from kaicore.runtime.service import get_logger

from kai_fleet.kubelet import Kubelet
from kai_fleet.metrics import Metrics
from kai_fleet.node_objects import owner
from kai_fleet.nodes import NodeSpec
from kai_fleet.nrt import API_VERSION, PATH, NrtBuilder
from kai_fleet.timers import Timers
from kai_fleet.writer import Write, Writer

_encode = msgspec.json.Encoder().encode

#: Why RTE wrote last. So the first periodic write after others changes the object, and watchers see it: what
#: kube-scheduler holds back as unschedulable is looked at again. Source: resource-topology-exporter v0.10.
_RTE_UPDATE = "k8stopoawareschedwg/rte-update"


@dataclass(slots=True)
class PublisherFaults:
    """What can go wrong with a publisher, on purpose."""

    #: Seconds by which every event-driven write is later.
    lag_s: float = 0.0
    #: So many of the next writes never reach the API server.
    lose: int = 0
    #: The fingerprint counts a pod that does not exist.
    wrong_fingerprint: bool = False


class Publisher:
    """Writes the object of one node; nothing when the profile says `none`."""

    def __init__(
        self,
        spec: NodeSpec,
        kubelet: Callable[[], Kubelet],
        *,
        timers: Timers,
        writer: Writer,
        metrics: Metrics,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a publisher.

        Args:
            spec: its node.
            kubelet: returns the node's kubelet, which is another one after a restart.
            timers: what it waits with.
            writer: what it writes with.
            metrics: where it counts.
            on_written: called after every write.
        """
        self.faults = PublisherFaults()
        #: The node's uid, once it is registered.
        self.owner_uid = ""
        #: The API server has had the object at least once.
        self.written = False
        self._on_written = on_written
        self._spec = spec
        self._profile = spec.group.nrt
        self._kubelet = kubelet
        self._builder = NrtBuilder(spec, kubelet())
        self._timers, self._writer, self._metrics = timers, writer, metrics
        self._random = random.Random(spec.number)
        self._exists = False
        self._running = False
        #: When the next write is due; timers for other times are void.
        self._due = float("inf")
        #: Since when the API server does not know the truth; None when it does.
        self._stale_since: float | None = None
        self._published = b""

    @property
    def enabled(self) -> bool:
        """Whether this node has a publisher at all."""
        return self._profile.publisher != "none"

    def start(self, *, exists: bool) -> None:
        """Begin: the first write comes at once; `exists` says that the object is likely to be there already."""
        if not self.enabled:
            return
        self._builder = NrtBuilder(self._spec, self._kubelet())
        self._exists, self._running, self._published = exists, True, b""
        now = self._timers.clock()
        self._stale_since = now
        self._schedule(now)

    def stop(self) -> None:
        """Write nothing any more, as when the node is deleted."""
        self._running = False
        self._due = float("inf")

    def changed(self) -> None:
        """Something on the node changed: write after the delay, unless a write is due before."""
        if not self._running:
            return
        now = self._timers.clock()
        if self._stale_since is None:
            self._stale_since = now
        wait = self._profile.delay + self._profile.jitter * self._random.random() + self.faults.lag_s
        if now + wait < self._due:
            self._schedule(now + wait)

    def _schedule(self, when: float) -> None:
        self._due = when
        if when < float("inf"):
            self._timers.at(when, partial(self._fire, when))

    def _fire(self, when: float) -> None:
        # Not by the time of day, which may have been set back: only by whether this is the last that was asked for.
        if not self._running or when != self._due:
            return
        now = self._timers.clock()
        period = self._profile.period
        periodic = self._stale_since is None
        self._schedule(now + period * (1 - 0.1 * self._random.random()) if period else float("inf"))
        if self.faults.lose > 0:
            self.faults.lose -= 1
            self._metrics.nrt_publishes.labels("lost").inc()
            return
        if self._writer.is_busy(self._key):
            # The one before is not answered yet: do not pile up, come again.
            self._schedule(now + max(self._profile.delay, 0.2))
            return
        body = self._builder.build(self._kubelet(), wrong_fingerprint=self.faults.wrong_fingerprint)
        content = _encode(body)
        if content == self._published and not periodic:
            self._stale_since = None
            self._metrics.nrt_publishes.labels("unchanged").inc()
            return
        if self._profile.publisher == "rte":
            reason = "periodic" if periodic else "reactive"
            body.setdefault("metadata", {}).setdefault("annotations", {})[_RTE_UPDATE] = reason
        self._send(body, content)

    @property
    def _key(self) -> str:
        return f"nrt/{self._spec.name}"

    def _send(self, body: dict[str, Any], content: bytes) -> None:
        """Write a body; `content` is what it says of the node, by which the next one is compared."""
        since, self._stale_since = self._stale_since, None

        def done(outcome: bytes | ApiStatus) -> None:
            self._answered(outcome, body, content, since)

        if self._exists:
            path = f"{PATH}/{self._spec.name}"
            self._writer.submit(Write(self._key, "nrt", "PATCH", path, _encode(body), MERGE_PATCH, done))
        else:
            metadata = {"name": self._spec.name, **body.get("metadata", {})}
            if self.owner_uid:
                metadata["ownerReferences"] = [owner(self._spec, self.owner_uid)]
            whole = {**body, "apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata}
            self._writer.submit(Write(self._key, "nrt", "POST", PATH, _encode(whole), done=done))

    def _answered(self, outcome: bytes | ApiStatus, body: dict[str, Any], content: bytes, since: float | None) -> None:
        if not isinstance(outcome, ApiStatus):
            self._exists = True
            self._published = content
            self.written = True
            self._on_written()
            self._metrics.nrt_publishes.labels("sent").inc()
            if since is not None:
                self._metrics.nrt_lag.observe(max(0.0, self._timers.clock() - since))
            return
        self._stale_since = since if self._stale_since is None else self._stale_since
        if not self._running:
            return
        # Gone, or there already: the other way round. Anything else: at the next occasion.
        if (outcome.code == 404 and self._exists) or (outcome.code == 409 and not self._exists):
            self._exists = not self._exists
            self._schedule(self._timers.clock())
            return
        get_logger(node=self._spec.name).warning("NodeResourceTopology was not written", error=str(outcome))
        self._published = b""

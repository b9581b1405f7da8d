"""State of one node's pods, and of what is still to be reported to ingest.

Answers of the kubelet go in, reports come out, ingest's answers go in again; nothing here does I/O or reads a clock.

A pod is reported when it is new or has changed, when it was absent in one poll, and with every drift pass, until
ingest has accepted it. A change is a change of the CPUs and devices themselves, not only of their numbers. So a pod
that was deleted and made anew under its name between two polls mostly shows, and it shows by its uid. Where neither
shows it, the drift pass corrects it.

Where the kubelet's state files can be read, a pod is reported with its uid and with what its init containers keep.

A pod may hold nothing, or the state files may contradict podresources. Such an answer is only believed when the next
poll repeats it. Between a pod's admission and its allocation a kubelet lists the pod like that for a moment, and a
report of it would free the pod's zones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import InvalidObject

from kai_exporter.checkpoints import Allocations
from kai_exporter.holdings import PodAllocations, PodHoldings, UnknownCpus, init_holdings, pod_holdings, shown_by
from kai_exporter.kubelet import decode_pod, pod_messages
from kai_exporter.wire import PodResources

#: Namespace and name, all that podresources tells of a pod's identity.
PodKey = tuple[str, str]


@dataclass(slots=True)
class _Listed:
    """A pod of the last answer.

    Attributes:
        pod: as podresources lists it.
        shown: the same, put in order.
        version: raised with each change.
        settled: False while it was seen empty only once.
        accepted: ingest has accepted this version.
        changed_at: when this version was first seen, seconds.
        retry_at: when it may be sent again, seconds.
        retries: how often in a row ingest could not place it.
        again: ingest has the version before, and the kubelet has said the same since: it was misread.
    """

    pod: PodResources
    shown: PodAllocations
    holdings: PodHoldings
    version: int
    settled: bool
    changed_at: float
    accepted: bool = False
    retry_at: float = 0.0
    retries: int = 0
    taken: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The reports about a node for ingest.

    Attributes:
        observed_at: when the kubelet was asked, microseconds since the epoch.
        full: it names every pod with known holdings.
        versions: which state of each pod this is, to be given back with the answer.
    """

    node: str
    sequence: int
    observed_at: int
    full: bool
    pods: tuple[PodHoldings, ...]
    versions: Mapping[PodKey, int]


def _by_name(
    messages: list[bytes], pods: Mapping[bytes, tuple[PodResources, PodAllocations]]
) -> tuple[dict[PodKey, tuple[bytes, PodResources, PodAllocations]], set[PodKey]]:
    """Return the pods of an answer by name, and the names that two of them have; of those, no pod."""
    listed: dict[PodKey, tuple[bytes, PodResources, PodAllocations]] = {}
    twice: set[PodKey] = set()
    for message in messages:
        pod, shown = pods[message]
        key = pod.namespace, pod.name
        if key in listed:
            twice.add(key)
        listed[key] = message, pod, shown
    for key in twice:
        del listed[key]
    return listed, twice


@dataclass(slots=True)
class NodePods:
    """One node.

    Attributes:
        poll_s: the least wait before a pod that ingest does not know yet is sent again; doubled each time.
        drift_s: the longest such wait.
    """

    node: str
    poll_s: float
    drift_s: float
    _full: bool = True
    _afresh: bool = False
    _quiet: bool = False
    _answer: bytes | None = None
    _observed_at: int = 0
    _pods: dict[PodKey, _Listed] = field(default_factory=dict)
    _key_of: dict[bytes, PodKey] = field(default_factory=dict)
    _withheld: dict[PodKey, tuple[int, ...]] = field(default_factory=dict)
    _unsettled: bool = False
    _sequence: int = 0
    _not_before: float = 0.0
    _not_taken: int = 0
    _versions: int = 0
    _allocations: Allocations | None = None

    @property
    def known(self) -> int:
        """The number of pods that the kubelet lists."""
        return len(self._pods) + len(self._withheld)

    @property
    def unaccepted(self) -> int:
        """The number of pods that ingest has still to accept."""
        return sum(not pod.accepted for pod in self._pods.values())

    @property
    def withheld(self) -> int:
        """The number of pods that cannot be reported: a CPU's zone is unknown, or two pods have one name."""
        return len(self._withheld)

    @property
    def restless(self) -> bool:
        """True if the kubelet must be asked again soon: a report or a check is still due."""
        return not self._quiet or self._unsettled or bool(self._withheld)

    def take(
        self,
        answer: bytes,
        *,
        now: float,
        observed_at: int,
        numa_node_of_cpu: Mapping[int, int],
        allocations: Allocations | None = None,
    ) -> list[InvalidObject]:
        """Take an answer of the kubelet's `List`; return what is wrong with it and was not said before.

        Raises InvalidObject: it is no answer of `List`; nothing has changed then.

        Args:
            answer: the encoded `ListPodResourcesResponse`.
            now: seconds, of a clock that does not jump.
            observed_at: when the kubelet was asked, microseconds since the epoch.
            allocations: what the kubelet's state files said after it had answered; None where they say nothing.
        """
        quiet = not self._unsettled and not self._withheld and not self._afresh
        if quiet and answer == self._answer and allocations is self._allocations:
            self._observed_at = observed_at
            return []
        subject = f"Node {self.node}"
        messages = pod_messages(answer, subject=subject)
        news = {message: decode_pod(message, subject=subject) for message in messages if message not in self._key_of}
        before, self._pods = self._pods, {}
        key_of, self._key_of = self._key_of, {}
        withheld, self._withheld = self._withheld, {}
        self._answer, self._observed_at, self._unsettled, self._quiet = answer, observed_at, False, False
        self._allocations = allocations
        problems: list[InvalidObject] = []
        pods = {message: (before[key].pod, before[key].shown) for message, key in key_of.items()}
        pods |= {message: (pod, shown_by(pod.containers)) for message, pod in news.items()}
        listed, twice = _by_name(messages, pods)
        uids = allocations.uids({key: shown for key, (_, _, shown) in listed.items()}) if allocations else {}
        for key, (message, pod, shown) in listed.items():
            try:
                as_listed = self._listed(
                    pod, shown, uid=uids.get(key, ""), before=before.get(key), now=now, cpus=numa_node_of_cpu
                )
            except UnknownCpus as error:
                self._withheld[key] = ids = tuple(error.ids)
                if withheld.get(key) != ids:
                    problems.append(self._unknown_cpus(key, error))
                continue
            self._pods[key] = as_listed
            self._unsettled |= not as_listed.settled
            self._key_of[message] = key
        self._afresh = False
        for key in sorted(twice):
            self._withheld[key] = ()
            if withheld.get(key) != ():
                problems.append(
                    InvalidObject(
                        f"Node {self.node}", "pod_resources", "/".join(key), "two pods of that name are listed"
                    )
                )
        return problems

    def _listed(
        self,
        pod: PodResources,
        shown: PodAllocations,
        *,
        uid: str,
        before: _Listed | None,
        now: float,
        cpus: Mapping[int, int],
    ) -> _Listed:
        same = before is not None and before.shown == shown
        kept = before is not None and same and not self._afresh
        holdings = before.holdings if before is not None and kept else pod_holdings(pod, cpus)
        files = self._allocations
        if files is not None and uid:
            holdings = msgspec.structs.replace(
                holdings,
                uid=uid,
                init_containers=init_holdings(shown, files.pods[uid], cpus),
                checked=files.complete(shown),
            )
        if before is not None and before.holdings == holdings and same:
            before.settled = True
            return before
        # A pod that the files do not know yet, or not so: they are written a moment before or after podresources tells.
        unsure = files is not None and not uid and any(any(held.exclusive) for held in shown.values())
        self._versions += 1
        again = self._afresh and same and before is not None and before.taken and before.holdings.uid == holdings.uid
        settled = not holdings.empty and not unsure
        return _Listed(pod, shown, holdings, self._versions, settled, now, again=again)

    def report_everything(self) -> None:
        """Have the next report name every pod, also those that ingest has accepted, as is read anew then."""
        self._full, self._afresh, self._quiet, self._key_of = True, True, False, {}

    def _unknown_cpus(self, key: PodKey, error: UnknownCpus) -> InvalidObject:
        return InvalidObject(
            f"Node {self.node}: Pod {key[0]}/{key[1]}",
            f"containers[{error.container}].cpu_ids",
            error.ids,
            "sysfs lists these CPUs on no NUMA node, so the pod is not reported",
        )

    def due(self, *, now: float) -> bool:
        """Tell whether there is something to tell ingest now; `now` as in `take`."""
        if self._answer is None or self._quiet or now < self._not_before:
            return False
        if self._full or any(pod.settled and not pod.accepted and pod.retry_at <= now for pod in self._pods.values()):
            return True
        self._quiet = not self.unaccepted
        return False

    def outgoing(self, *, now: float) -> Outgoing | None:
        """Return what to tell ingest now, None when there is nothing; `now` as in `take`."""
        if not self.due(now=now):
            return None
        chosen = {
            key: pod
            for key, pod in self._pods.items()
            if pod.settled and (self._full or (not pod.accepted and pod.retry_at <= now))
        }
        self._sequence += 1
        return Outgoing(
            self.node,
            self._sequence,
            self._observed_at,
            self._full,
            tuple(
                msgspec.structs.replace(pod.holdings, again=True) if pod.taken or pod.again else pod.holdings
                for pod in chosen.values()
            ),
            {key: pod.version for key, pod in chosen.items()},
        )

    def not_taken(self, *, now: float) -> None:
        """Ingest took nothing of a report; everything is sent again, less and less often. `now` as in `take`."""
        self._not_taken += 1
        self._not_before = now + backoff(self._not_taken, first=self.poll_s, most=self.drift_s)
        self.report_everything()

    def answered(self, sent: Outgoing, *, unknown: set[PodKey], refused: set[PodKey], now: float) -> list[float]:
        """Take ingest's answer to what was sent; return how many seconds each accepted change has waited.

        Args:
            unknown: pods that ingest cannot place yet; they are sent again, less and less often.
            refused: pods that ingest will not take as they are; they are sent again when they change, or when
                everything is.
            now: as in `take`.
        """
        waited = []
        self._full &= not sent.full
        self._not_taken = 0
        for key, version in sent.versions.items():
            pod = self._pods.get(key)
            if pod is None or pod.version != version:
                continue
            if key in unknown:
                pod.accepted = self._quiet = False
                pod.retries += 1
                pod.retry_at = now + backoff(pod.retries, first=self.poll_s, most=self.drift_s)
                continue
            if not pod.accepted and key not in refused:
                waited.append(now - pod.changed_at)
            pod.accepted, pod.taken, pod.retries = True, key not in refused, 0
        return waited

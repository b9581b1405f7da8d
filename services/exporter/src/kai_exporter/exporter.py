"""The exporter: polls kubelets and reports what changed; for one node as for a thousand.

Each node has a task that asks its kubelet. All nodes share one sender, so that reports that are due together travel
together. A kubelet or an ingest that does not answer is left alone for longer and longer, and nothing is lost: what was
not accepted stays due.

State files tell cheaply, and at once, whether a kubelet may have given or taken anything since it was last asked. A
kubelet keeps in them what its resource managers have given, and writes them with each change: `cpu_manager_state`,
`memory_manager_state`, and the device manager's `kubelet_internal_checkpoint`. Looking at their times costs a few
microseconds, asking over gRPC a hundred times that. A file that is written before the pod is listed must not mislead,
so after a change the kubelet is asked more than once.

Linux reports a change within a millisecond by inotify. Three calls of libc do, by ctypes, which takes 0.3 MB of the 30
that an exporter may take; watchdog takes 3.7 and threads (decision 0630).
"""

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from zlib import crc32

from kaicore.backoff import backoff, jittered
from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.kube.wire.kubelet_checkpoints import CPU_STATE, DEVICE_CHECKPOINT, MEMORY_STATE
from kaicore.rules.objects.reports import ReportAnswer
from kaicore.runtime.agent.metrics import Counter, Gauge, Histogram, Registry
from kaicore.runtime.agent.process import Log, jitter
from kaicore.runtime.process_context import Health

from kai_exporter.checkpoints import Allocations, Checkpoints, read_cpu_topology
from kai_exporter.ingest_client import IngestClient, IngestUnavailable
from kai_exporter.kubelet import KubeletUnavailable, PodResourcesClient
from kai_exporter.node_pods import NodePods, Outgoing

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ExporterMetrics:
    """The exporter's metrics; pods and nodes are those of all nodes it serves."""

    def __init__(self, *, registry: Registry) -> None:
        self.polls = Counter("kai_exporter_polls", "Answers of kubelets", ("result",), registry=registry)
        self.reports = Counter("kai_exporter_reports", "Nodes' reports sent", ("result",), registry=registry)
        self.pods = Counter("kai_exporter_pods", "Pods reported", ("result",), registry=registry)
        self.problems = Counter("kai_exporter_problems", "Pods that cannot be reported", registry=registry)
        self.file_problems = Counter(
            "kai_exporter_state_file_problems", "Reads of state files that were not usable", registry=registry
        )
        self.topologies = Counter(
            "kai_exporter_published_topologies",
            "Looks at what is to be published as NodeResourceTopology, by what became of it",
            ("result",),
            registry=registry,
        )
        self.nodes = Gauge("kai_exporter_nodes", "Nodes served", registry=registry)
        self.withheld = Gauge("kai_exporter_withheld_pods", "Pods that cannot be reported now", registry=registry)
        self.unaccepted = Gauge("kai_exporter_untold_pods", "Pods that ingest has still to accept", registry=registry)
        self.lag = Histogram(
            "kai_exporter_report_lag_seconds",
            "From when a change was first seen until ingest had accepted it",
            buckets=_BUCKETS,
            registry=registry,
        )


#: Below the kubelet's root directory, usually `/var/lib/kubelet`.
STATE_FILES = (CPU_STATE, MEMORY_STATE, DEVICE_CHECKPOINT)

#: Of `inotify(7)`: the events that are watched, those that are reported unasked, and how one is laid out.
_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_Q_OVERFLOW, _IN_IGNORED = 0x8, 0x80, 0x4000, 0x8000
_EVENT, _BUFFER = struct.Struct("iIII"), 4096
_NAMES = frozenset(os.fsencode(os.path.basename(name)) for name in STATE_FILES)  # noqa: PTH119

#: How often the kubelet is asked after a change.
_ASK_TIMES = 2


class StateFiles:
    """The state files of one kubelet."""

    def __init__(self, directory: Path) -> None:
        self._paths = [str(directory / name) for name in STATE_FILES]
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._ask = 0

    def worth_asking(self) -> bool:
        """Tell whether to ask now; always so where there are no such files."""
        versions = [_version(path) for path in self._paths]
        if not any(versions):
            return True
        if versions != self._seen:
            self._seen = versions
            self._ask = _ASK_TIMES
        self._ask = max(self._ask - 1, -1)
        return self._ask >= 0


class StateFileWatch:
    """Reports changes of kubelets' state files as Linux does; in a running event loop.

    A kubelet replaces its files, so the directories are watched.
    """

    def __init__(self) -> None:
        """Raises:
        OSError: the system has no inotify, or no more of it.
        """
        # It takes 0.3 MB, and only exporters with state files need it.
        import ctypes  # noqa: PLC0415

        self._errno = ctypes.get_errno
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), self._errno)
        self._add, self._remove = libc.inotify_add_watch, libc.inotify_rm_watch
        self._watching: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def add(self, directory: Path, changed: Callable[[], None]) -> bool:
        """Have changes of a kubelet's state files reported from now on; to be asked again while it returns False.

        Raises OSError: the system watches no more directories.

        Returns:
            whether all directories are there.
        """
        complete = True
        for path in sorted({(directory / name).parent for name in STATE_FILES}):
            try:
                number = _checked(self._add(self._fd, os.fsencode(path), _IN_CLOSE_WRITE | _IN_MOVED_TO), self._errno)
            except FileNotFoundError:
                complete = False
                continue
            self._watching[number] = changed
        return complete

    def remove(self, changed: Callable[[], None]) -> None:
        """Report nothing more to one that was given to `add`."""
        for number in [number for number, one in self._watching.items() if one == changed]:
            del self._watching[number]
            self._remove(self._fd, number)

    def close(self) -> None:
        """Watch nothing more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return
        informed: dict[Callable[[], None], None] = {}
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & _IN_Q_OVERFLOW:
                informed |= dict.fromkeys(self._watching.values())
            elif number in self._watching and (mask & _IN_IGNORED or name in _NAMES):
                # A directory that is gone is reported once: it may be there anew.
                informed[self._watching[number]] = None
                if mask & _IN_IGNORED:
                    del self._watching[number]
        for changed in informed:
            changed()

    def watches(self, changed: Callable[[], None]) -> bool:
        """Tell whether all directories of one that was given to `add` are still watched."""
        directories = {os.path.dirname(name) for name in STATE_FILES}  # noqa: PTH120
        return sum(one == changed for one in self._watching.values()) == len(directories)


def _checked(result: int, errno: Callable[[], int]) -> int:
    if result < 0:
        number = errno()
        raise OSError(number, os.strerror(number))
    return result


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # a thousand nodes have three thousand of them
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


#: Seconds; the first and the longest wait before a kubelet or ingest that failed is tried again.
_FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0

#: Nodes of one process are asked in so many groups, by their names: not all at once, but not each by itself either,
#: for a third of what asking costs is waking up.
_SLOTS = 32

#: Seconds from a look at a kubelet that changed its state files to the next: so many looks, for an admission writes
#: them one by one, and so long apart at least, however often they change.
_AGAIN_S = 0.03
_LOOKS = 2
_APART_S = 0.02

#: Pods in one request at most, unless one node has more.
MAX_PODS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPace:
    """The exporter's intervals, seconds.

    Attributes:
        poll_s: between two questions to a kubelet.
        quiet_s: the same while the kubelet's state files do not change; see `kai_exporter.exporter`.
        drift_s: between two reports of everything.
        linger_s: how long a report may wait for those of other nodes.
    """

    poll_s: float
    quiet_s: float
    drift_s: float
    linger_s: float = 0.0


class _Node:
    def __init__(self, name: str, socket: Path, sysfs_root: Path, state_dir: Path | None, pace: PollPace) -> None:
        self.name = name
        self.state_dir = state_dir
        self.changed = asyncio.Event()
        self.state = StateFiles(state_dir) if state_dir is not None else None
        self.read_files_anew()
        self.client = PodResourcesClient(str(socket))
        self.pods = NodePods(name, poll_s=pace.poll_s, drift_s=pace.drift_s)
        self.sysfs_root = sysfs_root
        self.numa_node_of_cpu = dict[int, int]()
        self.trouble = ""
        self.file_trouble = ""
        self.task: asyncio.Task[None] | None = None

    def read_files_anew(self) -> None:
        """Forget what state files said."""
        there = self.state_dir
        self.checkpoints = Checkpoints(there, subject=f"Node {self.name}") if there is not None else None

    async def changes_until(self, due: float) -> bool:
        """Wait until the state files change, at most for so long; tell whether they did."""
        try:
            async with asyncio.timeout_at(due):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def read_sysfs(self) -> bool:
        """Read which CPU is where; return whether that has changed."""
        before = self.numa_node_of_cpu
        self.numa_node_of_cpu = dict(read_cpu_topology(self.sysfs_root, subject=f"Node {self.name}"))
        return before != self.numa_node_of_cpu


class Exporter:
    """Serves nodes from `add_node` to `remove_node`; `run` sends what they have to tell."""

    def __init__(
        self, ingest: IngestClient, *, pace: PollPace, metrics: ExporterMetrics, health: Health, log: Log
    ) -> None:
        self._ingest = ingest
        self._pace = pace
        self._metrics = metrics
        self._health = health
        self._log = log
        self._nodes: dict[str, _Node] = {}
        self._watch: StateFileWatch | None = None
        self._watchable = True
        self._outbox: dict[str, None] = {}
        self._something_to_send = asyncio.Event()
        self._trouble = ""
        self._crash: BaseException | None = None
        metrics.nodes.set_function(lambda: len(self._nodes))
        metrics.unaccepted.set_function(lambda: sum(node.pods.unaccepted for node in self._nodes.values()))
        metrics.withheld.set_function(lambda: sum(node.pods.withheld for node in self._nodes.values()))

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes that are served."""
        return frozenset(self._nodes)

    def add_node(self, name: str, *, socket: Path, sysfs_root: Path, state_dir: Path | None = None) -> None:
        """Serve a node from now on.

        Args:
            state_dir: the kubelet's root directory: its state files tell uids and init containers, and it is asked
                less often while nothing changes there.
        """
        node = self._nodes[name] = _Node(name, socket, sysfs_root, state_dir, self._pace)
        node.task = asyncio.ensure_future(self._serve(node))
        node.task.add_done_callback(self._ended)

    async def remove_node(self, name: str) -> None:
        """Serve a node no more."""
        node = self._nodes.pop(name)
        self._outbox.pop(name, None)
        if self._watch is not None:
            self._watch.remove(node.changed.set)
        if node.task is not None:
            node.task.cancel()
            await asyncio.wait([node.task])
        await node.client.close()

    async def close(self) -> None:
        """Stop serving all nodes."""
        for name in list(self._nodes):
            await self.remove_node(name)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _see_changes(self, node: _Node) -> bool:
        """Have a node's state files watched, as far as there are any and the system allows it; tell whether all are."""
        if node.state_dir is None or not self._watchable:
            return False
        try:
            self._watch = self._watch or StateFileWatch()
            return self._watch.watches(node.changed.set) or self._watch.add(node.state_dir, node.changed.set)
        except OSError as error:
            # Then they are looked at as often as the kubelet would be asked.
            self._watchable = False
            self._log.warning("state files cannot be watched", node=node.name, error=str(error))
            return False

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self._crash = task.exception()
            self._something_to_send.set()

    async def _serve(self, node: _Node) -> None:
        share = crc32(node.name.encode()) % _SLOTS / _SLOTS
        now = _now()
        due = (now // self._pace.poll_s + 1 + share) * self._pace.poll_s if len(self._nodes) > 1 else now
        drift_at = now + self._pace.drift_s * (1 + share)
        ask_at = 0.0
        failures, looks, last = 0, 0, 0.0
        while True:
            if failures:
                await asyncio.sleep(due - _now())
            elif await node.changes_until(due):
                looks = _LOOKS
                await asyncio.sleep(last + _APART_S - _now())
            now = _now()
            if now >= drift_at:
                node.pods.report_everything()
                node.read_files_anew()
                drift_at = now + self._pace.drift_s
            seen = self._see_changes(node)
            worth = looks > 0 or node.state is None or node.state.worth_asking()
            if not (worth or node.pods.restless or now >= ask_at):
                # What is watched is not looked at until the kubelet is asked in any case.
                polls = ceil((min(ask_at, drift_at) - due) / self._pace.poll_s) if seen else 1
                due = max(due + max(polls, 1) * self._pace.poll_s, now)
                continue
            ask_at = now + self._pace.quiet_s
            last = now
            node.changed.clear()
            if await self._poll(node):
                failures = 0
                looks -= looks > 0
                wait = _AGAIN_S if looks else self._pace.poll_s
            else:
                failures, looks = failures + 1, 0
                wait = jittered(backoff(failures, first=self._pace.poll_s, most=MAX_BACKOFF_S), jitter())
            due = max((_now() if looks else due) + wait, _now())

    async def _poll(self, node: _Node) -> bool:
        observed_at = time.time_ns() // 1000
        try:
            answer = await node.client.list()
            self._take(node, answer, observed_at)
        except (KubeletUnavailable, InvalidObject) as error:
            self._metrics.polls.inc(1, "unavailable" if isinstance(error, KubeletUnavailable) else "invalid")
            if node.trouble != str(error):
                self._log.error("kubelet cannot be asked", node=node.name, error=str(error))
                node.trouble = str(error)
                if len(self._nodes) == 1:
                    self._health.unmet("kubelet", str(error))
            return False
        self._metrics.polls.inc(1, "ok")
        if node.trouble:
            self._log.info("kubelet answers again", node=node.name)
            node.trouble = ""
        self._health.met("kubelet")
        if node.name not in self._outbox and node.pods.due(now=_now()):
            self._outbox[node.name] = None
            self._something_to_send.set()
        return True

    def _take(self, node: _Node, answer: bytes, observed_at: int) -> None:
        if not node.numa_node_of_cpu:
            node.read_sysfs()
        allocations = self._allocations(node)
        take = partial(node.pods.take, answer, now=_now(), observed_at=observed_at, allocations=allocations)
        problems = take(numa_node_of_cpu=node.numa_node_of_cpu)
        # CPUs can be plugged in while we run.
        if node.pods.withheld and node.read_sysfs():
            problems = take(numa_node_of_cpu=node.numa_node_of_cpu)
        for problem in problems:
            self._metrics.problems.inc()
            self._log.error("pod cannot be reported", node=node.name, error=str(problem))

    def _allocations(self, node: _Node) -> Allocations | None:
        """Read the node's state files; without them podresources has to do."""
        if node.checkpoints is None:
            return None
        try:
            allocations = node.checkpoints.read()
        except InvalidObject as error:
            self._metrics.file_problems.inc()
            if node.file_trouble != str(error):
                self._log.warning("state files are not used, only podresources", node=node.name, error=str(error))
                node.file_trouble = str(error)
            return None
        if node.file_trouble:
            self._log.info("state files are used again", node=node.name)
            node.file_trouble = ""
        return allocations

    async def run(self) -> None:
        """Send reports until cancelled."""
        failures = 0
        while True:
            await self._something_to_send.wait()
            if self._crash is not None:
                raise self._crash
            if self._pace.linger_s:
                await asyncio.sleep(self._pace.linger_s)
            self._something_to_send.clear()
            asked_to_wait_s = 0.0
            batch: list[Outgoing] = []
            try:
                while batch := self._next_batch():
                    await self._send(batch)
                    failures = 0
            except (IngestUnavailable, ConfigurationError) as error:
                self._failed(batch, error)
                asked_to_wait_s = error.retry_after_s if isinstance(error, IngestUnavailable) else 0.0
                failures += 1
                delay_s = jittered(backoff(failures, first=_FIRST_BACKOFF_S, most=MAX_BACKOFF_S), jitter())
                await asyncio.sleep(max(asked_to_wait_s, delay_s))

    def _next_batch(self) -> list[Outgoing]:
        batch: list[Outgoing] = []
        pods = 0
        while self._outbox and (pods < MAX_PODS):
            name = next(iter(self._outbox))
            del self._outbox[name]
            if outgoing := self._nodes[name].pods.outgoing(now=_now()):
                batch.append(outgoing)
                pods += 1 + len(outgoing.pods)
        return batch

    async def _send(self, batch: list[Outgoing]) -> None:
        answers = await self._ingest.send(batch)
        if self._trouble:
            self._log.info("ingest takes reports again")
            self._trouble = ""
        self._health.met("ingest")
        superseded = False
        for sent, answer in zip(batch, answers, strict=True):
            self._metrics.reports.inc(1, answer.status)
            superseded |= answer.status == "superseded"
            self._answered(sent, answer)
        if superseded:
            self._ingest.renew_instance()

    def _answered(self, sent: Outgoing, answer: ReportAnswer) -> None:
        node = self._nodes.get(sent.node)
        if node is None:
            return
        if answer.status != "taken":
            self._log.error("report was not taken", node=sent.node, status=answer.status, detail=answer.detail)
            node.pods.not_taken(now=_now())
            return
        self._metrics.pods.inc(len(answer.unknown), "unknown")
        self._metrics.pods.inc(len(answer.refused), "refused")
        self._metrics.pods.inc(len(sent.pods) - len(answer.unknown) - len(answer.refused), "accepted")
        for pod in answer.refused:
            self._log.error("pod was refused", node=sent.node, pod=f"{pod.namespace}/{pod.name}", error=pod.detail)
        waited = node.pods.answered(
            sent,
            unknown={(pod.namespace, pod.name) for pod in (*answer.unknown, *answer.again)},
            refused={(pod.namespace, pod.name) for pod in answer.refused},
            now=_now(),
        )
        for seconds in waited:
            self._metrics.lag.observe(seconds)

    def _failed(self, batch: Iterable[Outgoing], error: KaiError) -> None:
        for outgoing in batch:
            self._metrics.reports.inc(1, "failed")
            if outgoing.node in self._nodes:
                self._outbox[outgoing.node] = None
        self._something_to_send.set()
        if self._trouble != str(error):
            self._log.error("ingest does not take reports", error=str(error))
            self._trouble = str(error)
        self._health.unmet("ingest", str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The system at rest and as it starts: `kai up` with the small simulated cluster, as a user runs it.

Of each process, while nothing happens: CPU, memory (its own pages, and its share of those it shares), and how often it
wakes. A simulated API server and its fleet stand apart from the sums: they are no part of the product. Of the start,
the time and the CPU until the first pod is bound, which was created as soon as the API server took it.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kai_cli.running.load import Loader
from kai_cli.sources.paths import DataDirectory
from kaicore.errors import KaiError, LogUnavailable, NotMigrated
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.servers.servers import scratch_directory
from tests.measured.bench.figures import Figure, figure

_ROUNDS = 3
#: Seconds after the start in which it comes to rest, and that are measured.
_SETTLE_S, _REST_S = 20.0, 40.0
#: Seconds until the first pod must be bound.
_PATIENCE_S = 120.0
_SIMULATED = ("kai-apiserver", "kai-fleet")
_RESOURCES = {"cpu": "1", "memory": "1Gi"}
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "first", "namespace": "default"},
    "spec": {
        "schedulerName": "kai-ledger",
        "containers": [{"name": "main", "image": "x", "resources": {"requests": _RESOURCES, "limits": _RESOURCES}}],
    },
}
#: Ways to run it, by what they are called in the figures.
_FORMS = {"": (), "compact, ": ("--compact",)}


@dataclass(slots=True)
class _Used:
    """What processes of one name have used: CPU seconds, times they waited, and megabytes."""

    cpu_s: float = 0.0
    wakes: int = 0
    pss: float = 0.0


@dataclass(slots=True)
class _Runs:
    """By process, what each run used at rest, in % of a core, wakes per second and megabytes; and what starts took."""

    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wakes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    pss: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    start_s: list[float] = field(default_factory=list)
    start_cpu_s: list[float] = field(default_factory=list)


def figures() -> Iterator[Figure]:
    runs = {form: _Runs() for form in _FORMS}
    for _ in range(_ROUNDS):
        for form, flags in _FORMS.items():
            asyncio.run(_measure(flags, runs[form]))
    for form, taken in runs.items():
        for name in taken.pss:
            yield figure(f"at rest, {form}{name}: CPU", taken.cpu[name], "% of a core")
            yield figure(f"at rest, {form}{name}: wakes", taken.wakes[name], "1/s")
            yield figure(f"at rest, {form}{name}: memory (PSS)", taken.pss[name], "MB")
        yield figure(f"kai up, {form}until the first pod is bound", taken.start_s, "s")
        yield figure(f"kai up, {form}CPU until the first pod is bound", taken.start_cpu_s, "s")


async def _measure(flags: tuple[str, ...], runs: _Runs) -> None:
    with scratch_directory() as root:
        directory = DataDirectory(root / "kai")
        began = time.monotonic()
        process = subprocess.Popen(  # noqa: ASYNC220  # it outlives no event loop
            [sys.executable, "-m", "kai_cli.main", "up", "--data-dir", str(directory.root), *flags],
            stdout=subprocess.DEVNULL,
        )
        try:
            await _until_first_bound(directory)
            runs.start_s.append(time.monotonic() - began)
            runs.start_cpu_s.append(sum(one.cpu_s for one in _used(process.pid).values()))
            await asyncio.sleep(_SETTLE_S)
            before = _used(process.pid)
            await asyncio.sleep(_REST_S)
            after = _used(process.pid)
            for name, one in (after | {"all but the simulated": _all(after)}).items():
                then = before.get(name, _Used()) if name in after else _all(before)
                runs.cpu[name].append((one.cpu_s - then.cpu_s) / _REST_S * 100)
                runs.wakes[name].append((one.wakes - then.wakes) / _REST_S)
                runs.pss[name].append(one.pss)
        finally:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait)


async def _until_first_bound(directory: DataDirectory) -> None:
    """Create a pod as soon as the API server takes it, and wait until the log says that it is bound."""
    created = False
    while not created:
        running = directory.running()
        cluster = None if running is None else running.clusters.get("kai")
        with suppress(KaiError, OSError):
            kubeconfig = (
                directory.cluster("kai") / "service.kubeconfig" if cluster is None else Path(cluster.kubeconfig)
            )
            if kubeconfig.exists():
                async with KubeClient(configured_access(str(kubeconfig))) as client:
                    await Loader(client).create([_POD])
                created = True
        await asyncio.sleep(0.05)
    while (running := directory.running()) is None or not running.database_url:  # noqa: ASYNC110  # a file sets no event
        await asyncio.sleep(0.05)
    log: PostgresLog | None = None
    while log is None:
        with suppress(LogUnavailable, NotMigrated):
            log = await PostgresLog.open(running.database_url)
    async with log:
        head = 0
        async with asyncio.timeout(_PATIENCE_S):
            while not await log.read("kai", limit=1, where=Filter(types=("PodBound",))):
                head = await log.wait_beyond("kai", head, timeout_s=5)


def _all(used: dict[str, _Used]) -> _Used:
    ours = [one for name, one in used.items() if name not in _SIMULATED]
    return _Used(sum(one.cpu_s for one in ours), sum(one.wakes for one in ours), sum(one.pss for one in ours))


def _used(root: int) -> dict[str, _Used]:
    """Return what `kai up` and the processes below it have used, by name; Postgres' processes are one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    ours = {root}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    used: dict[str, _Used] = defaultdict(_Used)
    names: Counter[str] = Counter()
    for pid in sorted(ours):
        with suppress(OSError):
            _add(pid, used, names, root)
    return dict(used)


def _add(pid: int, used: dict[str, _Used], names: Counter[str], root: int) -> None:
    process = Path(f"/proc/{pid}")
    name = (process / "comm").read_text().strip()
    if not name.startswith(("kai-", "postgres", "nats")):
        name = "kai up" if pid == root else f"fork server {parents_name(process)}"
    names[name] += 1
    one = used[name]
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    one.cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    one.pss += _field(process / "smaps_rollup", "Pss") / 1024
    for status in process.glob("task/*/status"):
        one.wakes += _field(status, "voluntary_ctxt_switches")


def parents_name(process: Path) -> str:
    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
    return f"of {Path(f'/proc/{parent}/comm').read_text().strip()}"


def _field(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{name}:"))

"""Three clusters end to end on one machine: three API servers, fleets and sets of services, one Postgres, one NATS.

The same number of pods is given to each at once. What is measured is how many are bound per second, all together, and
the CPU time that each kind of process used for a pod: with a core for each, the one that uses most is the limit.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from kai_cli.running.load import Loader
from kai_cli.running.stack import ClusterSpec, Stack
from kai_cli.sources.paths import DataDirectory
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.servers.servers import scratch_directory
from tests.measured.bench.end_to_end import cpu_by_process, nodes_known, pod
from tests.measured.bench.figures import Figure
from tests.measured.bench.scale.services import recorded


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: clusters of a profile, their nodes, and the pods in each."""

    clusters: int
    profile: str
    nodes: int
    pods: int


FULL = Size(clusters=3, profile="bench1000", nodes=1_000, pods=1_000)


@dataclass(frozen=True, slots=True)
class Bound:
    """The result: pods bound per second, of all clusters, and CPU microseconds of each service per pod."""

    per_s: float
    cpu_us: dict[str, float]


async def bound(size: Size) -> Bound:
    """Run everything, and bind."""
    names = [f"c{number}" for number in range(size.clusters)]
    with scratch_directory() as root, DataDirectory(root).lock() as held:
        stack = Stack(DataDirectory(root), lock=held, report=lambda _: None, log_level="warning")
        try:
            await stack.start()
            for name in names:
                await stack.add_cluster(ClusterSpec(name=name, profile=size.profile))
            async with await PostgresLog.open(stack.database_url) as log:
                await asyncio.gather(*(nodes_known(log, name, size.nodes) for name in names))
                before = cpu_by_process(stack, names)
                spans = await asyncio.gather(*(_bind(stack, log, name, size.pods) for name in names))
                after = cpu_by_process(stack, names)
        finally:
            await stack.stop()
    pods = size.clusters * size.pods
    seconds = (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e6
    return Bound(pods / seconds, {name: (after[name] - before.get(name, 0.0)) * 1e6 / pods for name in after})


async def _bind(stack: Stack, log: PostgresLog, cluster: str, pods: int) -> tuple[int, int]:
    """Give a cluster its pods; return when the first was seen and the last was bound."""
    after = (await log.head(cluster)).position
    async with KubeClient(configured_access(stack.clusters[cluster].service_kubeconfig)) as client:
        loading = asyncio.create_task(Loader(client).create([pod(index) for index in range(pods)]))
        outcomes = await recorded(log, cluster, "PodBound", count=pods, after=after)
        await loading
    (first,) = (await recorded(log, cluster, "PodObserved", count=1, after=after))[:1]
    return first.recorded_at, outcomes[-1].recorded_at


def figures(size: Size = FULL) -> Iterator[Figure]:
    run = asyncio.run(bound(size))
    what = f"scale: {size.clusters} clusters x {size.nodes} nodes, {size.pods} pods each, end to end"
    yield Figure(f"{what}: bound", round(run.per_s, 1), "pods/s", 0)
    for name, used in sorted(run.cpu_us.items(), key=lambda item: -item[1]):
        yield Figure(f"{what}: CPU of {name}", round(used, 1), "us per pod", 0)

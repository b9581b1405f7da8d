"""The cost of asking before submitting: CPU seconds of one answer on a cluster of 1,000 nodes."""

import random
import time
from collections.abc import Iterator

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.answers import SubmitAnswer
from kaicore.analysis.trial.submission.submit import submit
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.fork import fork

from tests.given.cluster.factory import amounts, pod
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns
from tests.measured.bench.figures import Figure, figure

_NODES, _RUNS = 1_000, 3
_ZONE = amounts(cpu=64, memory=512, gpu=4)
_WHOLE = {"cpu": 96, "memory": 640, "gpu": 8}


def _gang(pods: int) -> Located:
    limits = {"cpu": 96, "memory": "640Gi", "nvidia.com/gpu": 8}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    spec = {"schedulerName": EngineConfig().scheduler_name, "restartPolicy": "Never", "containers": [container]}
    metadata = {"name": "asked", "annotations": {"kai.scheduler/batch-min-member": str(pods)}}
    template = {"spec": spec}
    body = {"parallelism": pods, "completions": pods, "template": template}
    return Located("bench", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body})


def _busy(*, full: int, ones: bool) -> PastRuns:
    """So many nodes are full, of pods of one GPU or of whole nodes, and 20 gangs wait."""
    chance = random.Random(1)
    cluster = PastRuns()
    cluster.have_run("train", [chance.expovariate(1 / 7200) for _ in range(400)])
    for number in range(_NODES):
        cluster.add_node(f"n{number:04}", _ZONE, _ZONE, policy="restricted")
    start = cluster.now // SECOND
    for number in range(full * (8 if ones else 1)):
        spec = {"cpu": 2, "memory": 8, "gpu": 1} if ones else _WHOLE
        owner = job(cluster, f"train-{1000 + number}")
        cluster.add_pod(pod(f"train-{1000 + number}-x", owner=owner, created_at=start, **spec))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running", start_time=start)
    cluster.after(600)
    if full == _NODES:
        for number in range(20):
            cluster.gang(f"ahead-{number}", 4, created_at=cluster.now // SECOND, **_WHOLE)
    return cluster


def _ask(cluster: PastRuns, history: RunHistory, pods: int) -> tuple[list[float], SubmitAnswer]:
    took = []
    for _ in range(_RUNS):
        began = time.process_time()
        answer = submit(fork(cluster.state), [_gang(pods)], history, now=cluster.now)
        took.append(time.process_time() - began)
    return took, answer


def figures() -> Iterator[Figure]:
    for full, ones, pods in ((_NODES - 64, True, 64), (_NODES, False, 16), (_NODES, True, 4)):
        cluster = _busy(full=full, ones=ones)
        took, answer = _ask(cluster, cluster.history(), pods)
        (group,) = answer.groups
        of = "8 pods of one GPU" if ones else "a pod of 8 GPUs"
        what = f"{group.verdict}: gang of {pods} nodes on {_NODES} nodes, {full} of them full with {of} each"
        if group.start is not None:
            what += f", 20 gangs ahead, {group.start.scenarios} scenarios"
        yield figure(f"kai what-if submit: {what}: CPU", took, "s")
        cluster.events.clear()

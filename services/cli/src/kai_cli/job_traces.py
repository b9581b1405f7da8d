"""`kai import philly`, `dlrm` and `csv`: traces of jobs as a fleet profile and pods, and `kai import sources`.

These traces name no nodes. The fleet is as large as the options say; what else is assumed is said on output.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kai_cli.openb import Assumptions, TraceRow, fleet_profile, pod_manifest, rows_of, run_seconds, write_manifests

_GPU = "nvidia.com/gpu"
_GANG = "gang.scheduling.koordinator.sh"
_NO_LIMIT = {"quota": -1, "limit": -1}

#: Where the originals are, by the command that takes them.
SOURCES = """\
`kai import openb NODES.csv PODS.csv --out DIR`: cluster-trace-gpu-v2023 of https://github.com/alibaba/clusterdata
`kai import philly JOBS.csv --out DIR`: jobs of https://github.com/msr-fiddle/philly-traces
`kai import dlrm JOBS.csv --out DIR`: cluster-trace-gpu-v2025 of https://github.com/alibaba/clusterdata
`kai import csv JOBS.csv --out DIR`: a list: gpus, seconds; perhaps name, submitted, cpu_milli, memory_mib, queue
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAssumptions(Assumptions):
    """The assumptions about facts that a trace of jobs does not have.

    Attributes:
        nodes: nodes of the fleet.
        gpus: GPUs of a node. A job with more of them becomes a gang of pods that take whole nodes.
        cpus_per_gpu: CPUs beside each GPU, of nodes and of jobs that name none.
        memory_per_gpu: GiB of memory beside each GPU, likewise.
        first: how many jobs are taken, in the order of their submission; 0 for all.
    """

    nodes: int = 64
    gpus: int = 8
    cpus_per_gpu: int = 12
    memory_per_gpu: int = 96
    first: int = 2000
    namespace: str = "trace"


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace.

    Attributes:
        name: unique in its trace.
        submitted: seconds since any moment; only their order counts.
        lasted: seconds that it ran.
        gpus: whole GPUs.
        cpu_milli, memory_mib: as the trace says, None where it does not.
        queue: a virtual cluster or team, "" for none.
    """

    name: str
    submitted: float
    lasted: float
    gpus: int
    cpu_milli: int | None = None
    memory_mib: int | None = None
    queue: str = ""


def philly(jobs: Path, /, *, out: Path, assuming: Annotated[JobAssumptions | None, Parameter(name="*")] = None) -> int:
    """Turn jobs of the Philly trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        jobs: CSV with timestamp, duration (seconds), num_gpus and cluster, which becomes the queue.
        out: folder for the results; made when missing.
        assuming: what the trace does not say.
    """
    return _import(jobs, out, assuming or JobAssumptions(), _philly_job)


def dlrm(
    instances: Path, /, *, out: Path, assuming: Annotated[JobAssumptions | None, Parameter(name="*")] = None
) -> int:
    """Turn instances of the DLRM trace of 2025 into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        instances: CSV with instance_sn, app_name, cpu_request, gpu_request, memory_request (GiB), creation_time and
            deletion_time.
        out: folder for the results; made when missing.
        assuming: what the trace does not say.
    """
    return _import(instances, out, assuming or JobAssumptions(), _dlrm_job)


def plain_csv(
    jobs: Path, /, *, out: Path, assuming: Annotated[JobAssumptions | None, Parameter(name="*")] = None
) -> int:
    """Turn a list of jobs of one's own into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        jobs: CSV with gpus and seconds, perhaps name, submitted (seconds or a date), cpu_milli, memory_mib and queue.
        out: folder for the results; made when missing.
        assuming: what the list does not say.
    """
    return _import(jobs, out, assuming or JobAssumptions(), _plain_job)


def sources() -> int:
    """Print where the public traces are, and the command that takes each."""
    sys.stdout.write(SOURCES)
    return 0


def _import(file: Path, out: Path, assumed: JobAssumptions, job_of: Callable[[TraceRow], Job]) -> int:
    jobs = [job_of(row) for row in rows_of(file)]
    jobs.sort(key=lambda job: (job.submitted, job.name))
    taken = jobs[: assumed.first] if assumed.first else jobs
    node = {
        "cpu_milli": str(1000 * (assumed.gpus * assumed.cpus_per_gpu + 2)),
        "memory_mib": str(1024 * (assumed.gpus * assumed.memory_per_gpu + 8)),
        "gpu": str(assumed.gpus),
    }
    profile, _ = fleet_profile([TraceRow(node, "--nodes", 1)] * assumed.nodes, assumed)
    profile["description"] = "A fleet for a trace of jobs; all of it is assumed."
    queues = sorted({job.queue for job in taken if job.queue})
    manifests = [*map(_queue, queues), *(pod for job in taken for pod in job_pods(job, assumed))]
    write_manifests(out, profile, manifests, assumed.namespace)
    gangs = sum(job.gpus > assumed.gpus for job in taken)
    sys.stdout.write(
        f"{assumed.nodes} nodes of {assumed.gpus} GPUs -> {out / 'profile.yaml'}\n"
        f"{len(taken)} of {len(jobs)} jobs, {gangs} of them gangs: {len(manifests) - len(queues)} pods, "
        f"{len(queues)} queues -> {out / 'pods.json'}\n"
        f"assumed: {assumed.cpus_per_gpu} CPUs and {assumed.memory_per_gpu} GiB per GPU where none are named; "
        f"{assumed.zones} zones, policy {assumed.policy}; racks of {assumed.rack};\n"
        f"  all arrive at once and run for 1/{assumed.speedup} of their time, {assumed.max_run_seconds} s at most\n"
        f"next: `kai up --profile {out / 'profile.yaml'}`, then: `kai load {out / 'pods.json'}`\n"
    )
    return 0


def job_pods(job: Job, assumed: JobAssumptions) -> Iterator[dict[str, Any]]:
    """Yield the pods of a job: one, or a gang of pods with a node's GPUs each."""
    count = max(-(-job.gpus // assumed.gpus), 1)
    gang = {f"{_GANG}/name": job.name, f"{_GANG}/min-available": str(count)} if count > 1 else {}
    seconds = {"simulator.kai.scheduler/run-seconds": str(run_seconds(job.lasted, assumed))}
    labels = {"kai.scheduler/queue": job.queue} if job.queue else None
    for number in range(count):
        gpus = min(assumed.gpus, job.gpus - number * assumed.gpus)
        whole = max(gpus, 1)
        cpu = job.cpu_milli // count if job.cpu_milli is not None else 1000 * assumed.cpus_per_gpu * whole
        memory = job.memory_mib // count if job.memory_mib is not None else 1024 * assumed.memory_per_gpu * whole
        requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi", **({_GPU: str(gpus)} if gpus > 0 else {})}
        name = f"{job.name}-{number}" if count > 1 else job.name
        yield pod_manifest(name, assumed, requests=requests, guaranteed=True, annotations=seconds | gang, labels=labels)


def _queue(name: str) -> dict[str, Any]:
    resources = {"cpu": _NO_LIMIT, "memory": _NO_LIMIT, "gpu": {"quota": 0, "limit": -1, "overQuotaWeight": 1}}
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"resources": resources},
    }


def _philly_job(row: TraceRow) -> Job:
    return Job(
        f"philly-{row.line}",
        row.moment("timestamp"),
        row.number("duration"),
        row.count("num_gpus"),
        queue=f"vc-{row.name('cluster', '')}" if row.fields.get("cluster") else "",
    )


def _dlrm_job(row: TraceRow) -> Job:
    created = row.number("creation_time", default=0.0)
    return Job(
        row.name("instance_sn", "instance-"),
        created,
        max(row.number("deletion_time", default=created + 86_400) - created, 1.0),
        row.count("gpu_request", default=0),
        cpu_milli=int(1000 * row.number("cpu_request")),
        memory_mib=int(1024 * row.number("memory_request")),
    )


def _plain_job(row: TraceRow) -> Job:
    has = row.fields.get
    return Job(
        row.name("name", "job-"),
        row.moment("submitted"),
        row.number("seconds"),
        row.count("gpus"),
        cpu_milli=row.count("cpu_milli") if has("cpu_milli") else None,
        memory_mib=row.count("memory_mib") if has("memory_mib") else None,
        queue=row.name("queue", "") if has("queue") else "",
    )

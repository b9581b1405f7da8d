"""`kai import philly`, `dlrm` and `csv`: traces of jobs as a fleet profile and pods, and `kai import sources`.

These traces name no nodes. The fleet is as large as the options say; what else is assumed is said on output.

`kai import openb`: the OpenB trace of a production GPU cluster as a fleet profile and pods.

The trace has no NUMA zones, no racks and no gangs, knows shares of a GPU, and lasts months. What is assumed about all
that is in the options, and said on output.
"""

import csv
import gzip
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from cyclopts import Parameter
from kaicore.errors import ConfigurationError, InvalidObject

_GPU_MODEL = "nvidia.com/gpu.product"
_RACK = "cloud.provider.com/topology-rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The assumptions about facts that the trace does not have.

    Attributes:
        zones: NUMA zones of a node with 4 GPUs or more; GPUs, CPUs and memory are split evenly. Smaller nodes have one.
        policy: Topology Manager policy of the nodes with several zones.
        rack: how many nodes a rack has.
        speedup: how much faster than in the trace the tasks run.
        max_run_seconds: the longest that a task runs.
        scheduler_name: the pods' `spec.schedulerName`.
        namespace: the pods' namespace.
    """

    zones: int = 2
    policy: Literal["restricted", "single-numa-node", "best-effort", "none"] = "restricted"
    rack: int = 16
    speedup: int = 60
    max_run_seconds: int = 20
    scheduler_name: str = "kai-ledger"
    namespace: str = "openb"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of a trace, and the place that errors name (`fields`: by column)."""

    fields: dict[str, str]
    file: str
    line: int

    def number(self, field: str, *, default: float | None = None) -> float:
        """Return a number of 0 or more; the default where nothing is said.

        Raises InvalidObject: naming file, line, field and value.
        """
        text = self.fields.get(field) or ""
        if not text and default is not None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e15:
            raise InvalidObject(f"{self.file}, line {self.line}", field, text, "not a number of 0 or more")
        return number

    def count(self, field: str, *, default: float | None = None) -> int:
        """Return a whole number; else as `number`."""
        number = self.number(field, default=default)
        if number != int(number):
            raise InvalidObject(f"{self.file}, line {self.line}", field, self.fields.get(field), "not a whole number")
        return int(number)

    def moment(self, field: str) -> float:
        """Return a time in seconds, written so or as a date; 0 where nothing is said.

        Raises InvalidObject: it is neither.
        """
        text = self.fields.get(field) or ""
        try:
            return datetime.fromisoformat(text).timestamp() if "-" in text else self.number(field, default=0.0)
        except ValueError:
            raise InvalidObject(f"{self.file}, line {self.line}", field, text, "neither seconds nor a date") from None

    def name(self, field: str, prefix: str) -> str:
        """Return a field as a name that Kubernetes takes, or one by the line's number."""
        name = re.sub(r"[^a-z0-9-]+", "-", self.fields.get(field, "").lower()).strip("-")[:50].strip("-")
        return name or f"{prefix}{self.line}"


def openb(
    nodes: Path,
    pods: Path,
    /,
    *,
    out: Path,
    assuming: Annotated[Assumptions | None, Parameter(name="*")] = None,
) -> None:
    """Turn the OpenB trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        nodes: node list, CSV with sn, cpu_milli, memory_mib, gpu, model.
        pods: pod list, CSV with name, cpu_milli, memory_mib, num_gpu, gpu_milli, perhaps gpu_spec, qos, creation_time,
            deletion_time.
        out: folder for the results; made when missing.
        assuming: what the trace does not say.
    """
    assumed = assuming or Assumptions()
    profile, node_count = fleet_profile(rows_of(nodes), assumed)
    manifests = list(pod_manifests(rows_of(pods), assumed))
    write_manifests(out, profile, manifests, assumed.namespace)
    shared = sum("openb/gpu-milli" in item["metadata"]["annotations"] for item in manifests)
    sys.stdout.write(
        f"{node_count} nodes -> {out / 'profile.yaml'}\n{len(manifests)} pods -> {out / 'pods.json'}\n"
        f"assumed: nodes of 4 GPUs or more have {assumed.zones} zones, split evenly, policy {assumed.policy}; "
        f"racks of {assumed.rack};\n"
        f"  {shared} tasks with a share of a GPU get a whole one; LS and Guaranteed are Guaranteed, others not;\n"
        f"  all arrive at once and run for 1/{assumed.speedup} of their time, {assumed.max_run_seconds} s at most\n"
        f"next: `kai up --profile {out / 'profile.yaml'}`, then: `kai load {out / 'pods.json'}`\n"
    )


def fleet_profile(rows: Iterable[TraceRow], assumed: Assumptions) -> tuple[dict[str, Any], int]:
    """Return a fleet profile with a group for each shape of node, and how many nodes it has.

    Raises InvalidObject: naming file and row, field and value.
    """
    shapes: Counter[tuple[int, int, int, str]] = Counter()
    for row in rows:
        shapes[row.count("cpu_milli"), row.count("memory_mib"), row.count("gpu"), row.fields.get("model", "")] += 1
    groups = []
    for (cpu, memory, gpu, model), count in sorted(shapes.items(), key=lambda item: (-item[1], item[0])):
        zones = assumed.zones if gpu >= 4 else 1
        per_zone: dict[str, Any] = {"cpus": max(cpu // 1000 // zones, 1), "memory": f"{memory // zones}Mi"}
        if gpu:
            per_zone["devices"] = {_GPU: gpu // zones}
        groups.append(
            {
                "name": f"{model.lower() or 'cpu'}-{gpu}x-{cpu // 1000}c-{memory // 1024}g",
                "count": count,
                "labels": {_GPU_MODEL: model} if model else {},
                "zones": zones,
                # The trace does not tell which CPUs share a core, and some halves are odd.
                "threadsPerCore": 1,
                "perZone": per_zone,
                "kubelet": {
                    "topologyManagerPolicy": assumed.policy if zones > 1 else "none",
                    "cpuManagerPolicy": "static" if zones > 1 else "none",
                    "kubeReserved": {"cpu": "1"} if zones > 1 else {},
                },
            }
        )
    profile = {
        "description": "The OpenB trace's nodes; zones, policies and racks are assumptions.",
        "topologyLabels": {_RACK: assumed.rack},
        "groups": groups,
    }
    return profile, sum(shapes.values())


def pod_manifests(rows: Iterable[TraceRow], assumed: Assumptions) -> Iterator[dict[str, Any]]:
    """Yield a pod for each task. Raises InvalidObject: naming file and row, field and value."""
    for row in rows:
        name = row.fields.get("name") or f"openb-pod-{row.line - 2:04}"
        cpu = row.count("cpu_milli")
        memory = row.count("memory_mib")
        gpu = row.count("num_gpu")
        share = row.count("gpu_milli")
        requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
        devices = {_GPU: str(gpu)} if gpu else {}
        guaranteed = row.fields.get("qos", "LS") in ("LS", "Guaranteed")
        seconds = _run_seconds(row, assumed)
        annotations = {"simulator.kai.scheduler/run-seconds": str(seconds)}
        if gpu == 1 and share < 1000:
            annotations["openb/gpu-milli"] = str(share)
        manifest = pod_manifest(
            name, assumed, requests=requests | devices, guaranteed=guaranteed, annotations=annotations
        )
        if row.fields.get("gpu_spec"):
            models = {"key": _GPU_MODEL, "operator": "In", "values": row.fields["gpu_spec"].split("|")}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [models]}]}
            manifest["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        yield manifest


def pod_manifest(
    name: str,
    assumed: Assumptions,
    *,
    requests: dict[str, str],
    guaranteed: bool,
    annotations: dict[str, str],
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pod of one container; limits are the requests if it is guaranteed, else those of its GPUs."""
    limits = {resource: amount for resource, amount in requests.items() if guaranteed or resource == _GPU}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": assumed.namespace,
            "annotations": annotations,
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            "schedulerName": assumed.scheduler_name,
            "restartPolicy": "Never",
            "containers": [
                {"name": "task", "image": "trace/task", "resources": {"requests": requests, "limits": limits}}
            ],
        },
    }


def _run_seconds(row: TraceRow, assumed: Assumptions) -> int:
    if "creation_time" not in row.fields or "deletion_time" not in row.fields:
        return assumed.max_run_seconds
    lasted = row.count("deletion_time") - row.count("creation_time")
    return run_seconds(lasted, assumed)


def run_seconds(lasted: float, assumed: Assumptions) -> int:
    """Return for how long a task runs here that ran for so many seconds in its trace."""
    return max(1, min(int(lasted) // assumed.speedup, assumed.max_run_seconds))


def rows_of(path: Path) -> Iterator[TraceRow]:
    """Yield the rows of a CSV file, compressed by gzip or not. Raises ConfigurationError: it cannot be read."""
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            for line, fields in enumerate(csv.DictReader(file), start=2):
                yield TraceRow(fields, str(path), line)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def write_manifests(out: Path, profile: dict[str, Any], manifests: list[dict[str, Any]], namespace: str) -> None:
    """Write a fleet profile (profile.yaml) and the objects to load (pods.json) into a folder, made when missing."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "profile.yaml").write_text(yaml.safe_dump(profile, sort_keys=False))
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, *manifests]
    (out / "pods.json").write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))


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


Assuming = Annotated[JobAssumptions | None, Parameter(name="*")]


def philly(jobs: Path, /, *, out: Path, assuming: Assuming = None) -> None:
    """Turn jobs of the Philly trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        jobs: CSV with timestamp, duration (seconds), num_gpus and cluster, which becomes the queue.
        out: folder for the results; made when missing.
        assuming: what the trace does not say.
    """
    _import(jobs, out, assuming or JobAssumptions(), _philly_job)


def dlrm(instances: Path, /, *, out: Path, assuming: Assuming = None) -> None:
    """Turn instances of the DLRM trace of 2025 into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        instances: CSV with instance_sn, app_name, cpu_request, gpu_request, memory_request (GiB), creation_time and
            deletion_time.
        out: folder for the results; made when missing.
        assuming: what the trace does not say.
    """
    _import(instances, out, assuming or JobAssumptions(), _dlrm_job)


def plain_csv(jobs: Path, /, *, out: Path, assuming: Assuming = None) -> None:
    """Turn a list of jobs of one's own into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).

    Args:
        jobs: CSV with gpus and seconds, perhaps name, submitted (seconds or a date), cpu_milli, memory_mib and queue.
        out: folder for the results; made when missing.
        assuming: what the list does not say.
    """
    _import(jobs, out, assuming or JobAssumptions(), _plain_job)


def sources() -> None:
    """Print where the public traces are, and the command that takes each."""
    sys.stdout.write(SOURCES)


def _import(file: Path, out: Path, assumed: JobAssumptions, job_of: Callable[[TraceRow], Job]) -> None:
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

"""`kai history`: what became of jobs, as `sacct` has it: docs/how-to/report.md."""

import asyncio
from collections.abc import Sequence

import msgspec
from kaicore.analysis.ask.projections.jobs import JobHistory, JobPod, JobQuestion, JobRow
from kaicore.analysis.ask.projections.questions import ReadModels, folded_jobs
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.postgres import PostgresLog

from kai_cli.asking.questions import NamespaceFlag
from kai_cli.history.report import ReportOutput, print_report
from kai_cli.output import Progress, table
from kai_cli.sources.answers import named_api
from kai_cli.sources.log_access import open_cluster_log
from kai_cli.sources.source import ANY_ANSWER, AnswerSource, FromFlag, SourceFlags, ToFlag, one_cluster


def history(
    job: str = "",
    /,
    *,
    namespace: NamespaceFlag = None,
    queue: str = "",
    user: str = "",
    state: str = "",
    since: FromFlag = "",
    until: ToFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: ReportOutput = "table",
) -> None:
    """Say what became of jobs: waits, run times, GPU-hours, why they ended; of one job its attempts.

    Args:
        job: NAME or NAMESPACE/NAME of a group or pod; by default all jobs.
        namespace: only of this namespace; by default of all.
        queue: only of this queue.
        user: only of this user, by the pods' label.
        state: only those that are waiting, running, completed, failed, evicted or deleted.
        since: only jobs that were there since: a position, a time, or a time before the log's end, such as -7d.
        until: only jobs that were there until then.
    """
    there, _, name = job.rpartition("/")
    wanted = JobQuestion(
        name=name, namespace=there or namespace or "", queue=queue, user=user, state=state, since=since, until=until
    )
    wanted.check()
    answer = asyncio.run(_history(source, wanted))
    if job and not answer.items:
        raise UnknownSubject(f"cluster {answer.cluster}: no job {job} up to position {answer.position}")
    print_report(
        answer,
        output,
        lambda: history_text(answer, by_attempts=bool(job)),
        lambda: history_rows(answer, by_attempts=bool(job)),
    )


_HEAD = (
    *("NAMESPACE", "NAME", "KIND", "QUEUE", "USER", "STATE", "SUBMITTED", "STARTED", "ENDED", "WAITED", "ELAPSED"),
    *("GPUS", "GPU-HOURS", "ATTEMPTS", "EVICTIONS", "NODES", "WHY ENDED"),
)
_POD_HEAD = (
    *("ATTEMPT", "POD", "STATE", "NODE", "SUBMITTED", "ELIGIBLE", "STARTED", "ENDED", "ELAPSED", "GPUS"),
    *("GPU-HOURS", "WHY ENDED"),
)


async def _history(source: AnswerSource, wanted: JobQuestion) -> JobHistory:
    if source.api_named:
        api, clusters = await named_api(source)
        return await api.jobs(one_cluster(source, clusters), wanted)
    async with open_cluster_log(source) as (log, cluster):
        kept = ReadModels(log, ViewStore(log.connections)) if isinstance(log, PostgresLog) else None
        found = None if kept is None else await kept.jobs(cluster, wanted)
        if found is not None:
            return found
        with Progress("folding the log") as progress:
            return await folded_jobs(log, cluster, wanted, progress=progress)


def history_text(answer: JobHistory, *, by_attempts: bool) -> str:
    """Return jobs for people; `by_attempts` with the pods of each."""
    parts = [f"cluster {answer.cluster}: up to position {answer.position}, {answer.recorded_at}"]
    parts.append(table(_HEAD, [_job_cells(job) for job in answer.items]) if answer.items else "no jobs")
    pods = [_pod_cells(pod) for job in answer.items for pod in job.pods] if by_attempts else []
    if pods:
        parts.append(table(_POD_HEAD, pods))
    return "\n\n".join(parts)


def _job_cells(job: JobRow) -> Sequence[str]:
    times = map(_short, (job.submitted, job.started, job.ended))
    lasting = (f"{job.waited_s:,} s", f"{job.elapsed_s:,} s", f"{job.gpus:g}", f"{job.gpu_hours:,.2f}")
    about = (job.namespace, job.name, job.kind, job.queue, job.user, job.state)
    nodes = ",".join(job.nodes[:3]) + (f" and {len(job.nodes) - 3} more" if len(job.nodes) > 3 else "")
    return [*about, *times, *lasting, str(job.attempts), str(job.evictions), nodes, job.why_ended]


def _pod_cells(pod: JobPod) -> Sequence[str]:
    times = map(_short, (pod.submitted, pod.eligible, pod.started, pod.ended))
    lasting = (f"{pod.elapsed_s:,} s", f"{pod.gpus:g}", f"{pod.gpu_hours:,.2f}")
    return [str(pod.attempt), pod.name, pod.state, pod.node, *times, *lasting, pod.why_ended]


def _short(time: str) -> str:
    return time.partition(".")[0] or "-"


def history_rows(answer: JobHistory, *, by_attempts: bool) -> tuple[list[str], list[list[object]]]:
    """Return the head and the rows of jobs; `by_attempts` of their pods instead, each with its job."""
    if by_attempts:
        pods = [(f"{job.kind}/{job.namespace}/{job.name}", pod) for job in answer.items for pod in job.pods]
        return ["job", *JobPod.__struct_fields__], [[job, *msgspec.structs.astuple(pod)] for job, pod in pods]
    names = [name for name in JobRow.__struct_fields__ if name not in ("nodes", "pods")]
    rows: list[list[object]] = [[*(getattr(job, name) for name in names), " ".join(job.nodes)] for job in answer.items]
    return [*names, "nodes"], rows

"""`kai policy try FILE`: a recorded window scheduled again with a policy and without it.

`kai policy check FILE`: the properties of a policy's answers, tried on generated clusters.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.trial.history.alternative import HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import HistoryComparison
from kaicore.analysis.trial.policy_check import PolicyCheck, check_policy
from kaicore.errors import ConfigurationError
from kaicore.runtime.policies.loading import LoadedPolicy

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.policies import ArgumentsFlag, book_of, policy_of
from kai_cli.sources.source import ANY_LOG, FromFlag, LogSourceFlags, ToFlag
from kai_cli.trials.what_if_history import answer_history, comparison_text, queues_text


def try_policy(
    file: str,
    /,
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    arguments: ArgumentsFlag = "",
    queue: Annotated[list[str] | None, Parameter(name="--queue")] = None,
    best: bool = False,
    policy: tuple[str, ...] = (),
    html: Path | None = None,
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> None:
    """Simulate history again with a policy and without it: GPUs, waits by queue and size, who wins, who loses.

    Args:
        file: of the policy, ending in .py; or the name of an installed one.
        since: the window's first event: a position, a time, or a time before the log's end, such as -7d.
        until: its last event; by default the log's last one.
        arguments: a JSON object; by default all defaults.
        queue: for which it decides; by default all; may be given several times.
        best: also with each of the three best policies of the league.
        policy: a policy that the shard had in the window: its file, or its entry point; may be given several times.
        html: write a report with plots to this file, too.
    """
    book = book_of(policy)
    tried = policy_of(file, arguments, queues=tuple(queue or ()))
    book.add(tried.kind, tried.setting.digest)
    question = HistoryQuestion(since=since, until=until, patches=(with_policy(tried),), policies=best)
    answer_history(source, question, lambda answer: trial_text(answer, tried), html, output, policies=book)


def with_policy(tried: LoadedPolicy) -> PatchText:
    """Return the alternative in which a policy decides, too."""
    return PatchText.of(f"with {tried.setting.name}", policies=[tried.setting])


def trial_text(comparison: HistoryComparison, tried: LoadedPolicy) -> str:
    """Return the report for people."""
    setting = tried.setting
    arguments = ", ".join(f"{name}={value}" for name, value in setting.arguments.items())
    head = (
        f"policy {setting.name} {setting.version} ({', '.join(setting.points)}; digest {setting.digest[:12]})"
        + (f", {arguments}" if arguments else "")
        + f", for {', '.join(setting.queues) or 'all queues'}"
    )
    return "\n\n".join((head, comparison_text(comparison), queues_text(comparison)))


def check(
    file: str,
    /,
    *,
    arguments: ArgumentsFlag = "",
    clusters: int = 40,
    seed: int = 0,
    budget_ms: int = 100,
    output: OutputFlag = "table",
) -> int:
    """Try a policy on generated clusters: right and equal answers, in any order of nodes, in time; exit 1 if not.

    Args:
        file: of the policy, ending in .py; or the name of an installed one.
        arguments: a JSON object; by default all defaults.
        clusters: how many clusters are generated; the first four have no node, one, no labels, and no room.
        seed: of the clusters.
        budget_ms: milliseconds of CPU that one call may take on 10,000 nodes.
    """
    if clusters < 1 or budget_ms < 1:
        raise ConfigurationError("--clusters, --budget-ms: must be 1 or more")
    loaded = policy_of(file, arguments)
    book = book_of()
    book.add(loaded.kind, loaded.setting.digest)
    report = check_policy(loaded.setting, book, seed=seed, clusters=clusters, budget_s=budget_ms / 1000)
    print_answer(report, output, lambda: check_text(report, file))
    return 0 if report.passed else 1


def check_text(report: PolicyCheck, source: str) -> str:
    """Return a report for people."""
    rows = [
        (one.point, one.check, "holds" if one.passed else "FAILS", str(one.cases), one.problem)
        for one in report.results
    ]
    failed = sum(not one.passed for one in report.results)
    lines = [
        f"policy {report.name} {report.version} ({source}, digest {report.digest[:12]}), {report.clusters} clusters",
        table(("POINT", "PROPERTY", "", "CASES", ""), rows),
        *(f"note: {note}" for note in report.notes),
        f"{failed} of {len(rows)} properties fail" if failed else f"all {len(rows)} properties hold",
    ]
    return "\n\n".join(lines)

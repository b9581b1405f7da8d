"""`kai policy check FILE`: the properties of a policy's answers, tried on generated clusters."""

from kaicore.analysis.trial.policy_check import PolicyCheck, check_policy
from kaicore.errors import ConfigurationError

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.policies import ArgumentsFlag, book_of, policy_of


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
        output: table, json or yaml.
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

"""The current cluster: meant by a command about one cluster that names none (docs/how-to/several-clusters.md).

A question that can be asked of all clusters is asked of all. The current cluster is meant by questions about one:
about an API server, the file of a log, a position, a cycle, a shadow. One line of standard error names it.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kaicore.errors import ConfigurationError
from kaicore.spelling import did_you_mean

from kai_cli.sources.paths import DataDirectory, data_directory
from kai_cli.sources.source import AnswerSource, LogSource

_LookT = TypeVar("_LookT")
_VARIABLE = "KAI_CLUSTER"


def current_cluster(there_are: Sequence[str], directory: DataDirectory | None) -> str:
    """Return the one cluster that is meant where none is named, and say on standard error which it is.

    It is that of $KAI_CLUSTER, else the one of `kai cluster use`, else the first by name. Nothing is said where there
    is only one. Raises ConfigurationError: there is none, or what was chosen before is not among them.

    Args:
        directory: in which `kai cluster use` chose; None where a database or an API was named instead.
    """
    if not there_are:
        raise ConfigurationError("there is no cluster yet")
    if len(there_are) == 1:
        return there_are[0]
    if named := os.environ.get(_VARIABLE):
        chosen, how = named, f"of ${_VARIABLE}"
    elif directory is not None and (named := directory.current_cluster()):
        chosen, how = named, "of `kai cluster use`"
    else:
        chosen, how = min(there_are), f"the first of {len(there_are)}"
    if chosen not in there_are:
        close = did_you_mean(chosen, there_are)
        raise ConfigurationError(f"cluster {chosen}, {how}: is not there{close}; there are: {', '.join(there_are)}")
    sys.stderr.write(f"kai: cluster {chosen}, {how}; --cluster names another\n")
    return chosen


def one_cluster(source: LogSource, there_are: Sequence[str]) -> str:
    """Return the cluster that `source` names, else the current one; see `current_cluster`."""
    elsewhere = source.file is not None or source.database() is not None
    elsewhere |= isinstance(source, AnswerSource) and source.api_named
    return current_cluster(source.clusters(there_are), None if elsewhere else data_directory(source.data_dir))


def clusters_at(source: LogSource, there_are: Sequence[str], *moments: str) -> list[str]:
    """Return the clusters that a question about moments is asked of; positions are those of one cluster's log.

    Raises ConfigurationError: there is no such cluster.
    """
    # As `kaicore.analysis.replay.moments` reads them, which takes a while to import.
    if any(moment.strip().isdigit() for moment in moments):
        return [one_cluster(source, there_are)]
    return source.clusters(there_are)


async def look_in(clusters: Sequence[str], look: Callable[[str], Awaitable[_LookT]]) -> list[tuple[str, _LookT]]:
    """Look something up in the log of each cluster; one without such a moment in its log is left out, and named.

    Raises ConfigurationError: no cluster's log has it.
    """
    there: list[tuple[str, _LookT]] = []
    problems: list[ConfigurationError] = []
    for cluster in clusters:
        try:
            there.append((cluster, await look(cluster)))
        except ConfigurationError as error:
            problems.append(error)
    if problems and not there:
        raise problems[0]
    for problem in problems:
        sys.stderr.write(f"kai: left out: {problem}\n")
    return there

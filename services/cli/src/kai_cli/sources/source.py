"""The source that a question goes to: a running API, or else the log itself; and the cluster that is meant.

A question that can be asked of all clusters is asked of all. The current cluster is meant by questions about one that
name none: about an API server, the file of a log, a position, a cycle, a shadow (docs/how-to/several-clusters.md). One
line of standard error names it.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter
from kaicore.errors import ConfigurationError
from kaicore.spelling import did_you_mean

from kai_cli.sources.paths import DataDirectory, data_directory

_API_URL = "KAI_API_URL"


def _not_empty(_: object, value: str) -> None:
    if not value:
        raise ValueError("Must not be empty.")


#: Of an argument that has to be there: an API takes an empty one for none.
GIVEN = Parameter(validator=_not_empty)


@dataclass(frozen=True, slots=True)
class LogSource:
    """The choice of a log: the flags of all commands that read the log itself.

    Attributes:
        data_dir: of the `kai up` that is meant, whether it runs or not; by default .kai, or $KAI_DATA_DIR.
        database_url: ask the log in this Postgres itself; also $KAI_DATABASE_URL, unless a --data-dir is named.
        cluster: which of the log's clusters; by default all; for what is about one the current (`kai cluster use`).
        file: ask a file that `kai export` wrote, and nothing else.
        retired: read the months that `kai retire --to` put into this directory, as if they were still in the log.
    """

    data_dir: Path | None = None
    database_url: str | None = None
    cluster: str | None = None
    file: Path | None = None
    retired: Path | None = None

    def __post_init__(self) -> None:
        if self.file is not None and self.retired is not None:
            raise ConfigurationError("--retired: a file is asked alone, without --retired")
        if self.file is not None and (self.data_dir is not None or self.database_url is not None):
            raise ConfigurationError("--file: a file is asked alone, without --data-dir and --database-url")

    def database(self) -> str | None:
        """Return the database that is named; None where the data directory is meant."""
        if self.database_url is not None or self.data_dir is not None:
            return self.database_url
        return os.environ.get("KAI_DATABASE_URL") or None

    def clusters(self, there_are: Sequence[str]) -> list[str]:
        """Return the clusters that are meant, of those that there are: the named one, or all.

        Raises ConfigurationError: there is no such cluster, or none at all.
        """
        if self.cluster is not None and self.cluster not in there_are:
            raise ConfigurationError(
                f"no cluster {self.cluster!r} in the log{did_you_mean(self.cluster, there_are)}; "
                f"there are: {', '.join(there_are) or '-'}"
            )
        return list(there_are) if self.cluster is None else [self.cluster]


@dataclass(frozen=True, slots=True)
class HubSource:
    """The choice of a hub: the flags of commands that read the hub's log itself.

    Attributes:
        data_dir: of the `kai up` that is meant; by default .kai, or $KAI_DATA_DIR.
        database_url: the log in this Postgres; also $KAI_DATABASE_URL.
    """

    data_dir: Path | None = None
    database_url: str | None = None

    @property
    def log(self) -> LogSource:
        """The log that is meant."""
        return LogSource(data_dir=self.data_dir, database_url=self.database_url)


@dataclass(frozen=True, slots=True)
class AnswerSource(LogSource):
    """The choice of a source: the flags of commands that an API can answer, too.

    Attributes:
        api_url: ask this API instead; also $KAI_API_URL, unless a --data-dir, --database-url or --file is named.
        token: key or token for the API; better $KAI_API_TOKEN, which no list of processes shows. A `kai up` of one's
            own needs none.
    """

    api_url: str | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        # No super(): a dataclass with slots is another class than the one with this body.
        LogSource.__post_init__(self)
        for flag, given in (("--file", self.file), ("--retired", self.retired)):
            if given is not None and self.api_url is not None:
                raise ConfigurationError(f"{flag}: is read here, and not by the API of --api-url")

    @property
    def api_named(self) -> bool:
        """True if only this API is to be asked."""
        return self.api_url is not None or (
            self.file is None
            and self.retired is None
            and self.database() is None
            and self.data_dir is None
            and _API_URL in os.environ
        )

    def api(self) -> str | None:
        """Return the address of the API to ask: the one that is named, or that of the stack that runs; None if none."""
        if self.api_url is not None or self.file is not None or self.retired is not None:
            return self.api_url
        if self.database_url is None and self.data_dir is None and (named := os.environ.get(_API_URL)):
            return named
        if self.database() is not None:
            return None
        running = data_directory(self.data_dir).running()
        return None if running is None else running.api_url or None

    def api_token(self) -> str:
        """Return the key or token for the API: the one that is named, or that of the stack that runs; empty if none."""
        named = self.token or os.environ.get("KAI_API_TOKEN", "")
        if named or self.api_named:
            return named
        running = data_directory(self.data_dir).running()
        return "" if running is None else running.api_key


_MOMENT = "a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end"
#: Moments of a log. `-5m` is no option.
AtFlag = Annotated[str, Parameter(name="--at", allow_leading_hyphen=True, help=f"as of a moment: {_MOMENT} (-5m).")]
FromFlag = Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)]
ToFlag = Annotated[str, Parameter(name="--to", allow_leading_hyphen=True)]
#: The ends of a range.
BeginFlag = Annotated[FromFlag, Parameter(help=f"begin here: {_MOMENT} (-24h).")]
EndFlag = Annotated[ToFlag, Parameter(help="end here, likewise.")]
LogSourceFlags = Annotated[LogSource, Parameter(name="*")]
HubFlags = Annotated[HubSource, Parameter(name="*")]
SourceFlags = Annotated[AnswerSource, Parameter(name="*")]

#: Sources where no flag names one.
ANY_LOG, ANY_HUB, ANY_ANSWER = LogSource(), HubSource(), AnswerSource()


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

"""`kai submit` and `kai withdraw`: work that is given to the hub, to run in one of its clusters."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.dispatching.reading import read_dispatch
from kaicore.analysis.simulation import Located
from kaicore.errors import ConfigurationError
from kaicore.rules.events.payloads import DispatchSubmitted, DispatchWithdrawn
from kaicore.rules.hub.hub_state import ENDED, dispatch_stream
from kaicore.spelling import did_you_mean

from kai_cli.hub_log import hub_of
from kai_cli.log_access import open_log
from kai_cli.manifests import STDIN, read_located
from kai_cli.source import LogSource

#: A dispatch's name is part of an annotation and of paths: RFC 1123.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)


def submit(
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    name: str = "",
    cluster: list[str] | None = None,
    data: list[str] | None = None,
    data_dir: Path | None = None,
    database_url: str | None = None,
) -> int:
    """Give objects to the hub, which makes them in one of its clusters: all of them in the same.

    Args:
        files: manifests (YAML or JSON), folders of them, or - for standard input.
        name: of the dispatch; by default that of the first object.
        cluster: that it may run in: A,B, or given again for each; by default any.
        data: data sets that it reads, likewise; clusters near them are preferred.
        data_dir: of the `kai up` that is meant; by default .kai, or $KAI_DATA_DIR.
        database_url: the log in this Postgres; also $KAI_DATABASE_URL.
    """
    if not files:
        raise ConfigurationError("submit what? Name files or folders, or - for standard input")
    for file in files:
        if str(file).startswith("-") and file != STDIN:
            raise ConfigurationError(f"no such option: {file}")
    objects = read_located(list(files))
    submitted = _dispatch(objects, name, clusters=_names(cluster), data=_names(data))
    return asyncio.run(_submit(LogSource(data_dir=data_dir, database_url=database_url), submitted))


def _dispatch(
    objects: Sequence[Located], name: str, *, clusters: Sequence[str], data: Sequence[str]
) -> DispatchSubmitted:
    if not objects:
        raise ConfigurationError("no Kubernetes objects in these files")
    metadata = objects[0].object.get("metadata")
    first = metadata.get("name") if isinstance(metadata, dict) else None
    chosen = name or str(first or "")
    if not _LABEL.fullmatch(chosen):
        raise ConfigurationError(
            f"--name {chosen!r}: must be 1 to 63 of a-z, 0-9, - and ., with no - or . at either end"
        )
    return read_dispatch(chosen, objects, clusters=clusters, data=data)


async def _submit(source: LogSource, submitted: DispatchSubmitted) -> int:
    name = submitted.dispatch
    async with open_log(source) as log, hub_of(log) as hub:
        there = [cluster for cluster, _ in hub.state.present()]
        for cluster in submitted.clusters:
            if cluster not in there:
                raise ConfigurationError(
                    f"--cluster {cluster}: is not registered{did_you_mean(cluster, there)}; there are: "
                    f"{', '.join(there) or '-'}"
                )
        if not there:
            raise ConfigurationError("the hub has no cluster; register one: kai cluster add")
        before = hub.state.dispatches.get(name)
        if before is not None:
            where = f" in {before.cluster}" if before.cluster else ""
            raise ConfigurationError(f"dispatch {name}: is there already ({before.stage}{where}); name another --name")
        await hub.append(dispatch_stream(name), submitted, subject=name)
    print(f"dispatch {name}: submitted; kai why dispatch/{name} says where it goes")
    return 0


def withdraw(name: str, /, *, data_dir: Path | None = None, database_url: str | None = None) -> int:
    """Take a dispatch back, wherever it is: its objects are deleted, what runs of it ends.

    Args:
        name: of the dispatch.
        data_dir: of the `kai up` that is meant; by default .kai, or $KAI_DATA_DIR.
        database_url: the log in this Postgres; also $KAI_DATABASE_URL.
    """
    return asyncio.run(_withdraw(LogSource(data_dir=data_dir, database_url=database_url), name))


async def _withdraw(source: LogSource, name: str) -> int:
    async with open_log(source) as log, hub_of(log) as hub:
        entry = hub.state.dispatches.get(name)
        if entry is None:
            raise ConfigurationError(f"the hub knows of no dispatch {name}{did_you_mean(name, hub.state.dispatches)}")
        if entry.stage in ENDED:
            raise ConfigurationError(f"dispatch {name}: has ended already ({entry.stage})")
        await hub.append(dispatch_stream(name), DispatchWithdrawn(dispatch=name), subject=name)
    print(f"dispatch {name}: withdrawn")
    return 0


def _names(given: Sequence[str] | None) -> list[str]:
    return sorted({name for value in given or () for name in value.split(",") if name})

"""`kai submit` and `kai withdraw`: work that is given to the hub, to run in one of its clusters."""

import asyncio
import os
import shlex
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.hub_rows import decision_text
from kaicore.analysis.trial.dispatching import (
    HubLog,
    hub_of,
    named_dispatch,
    submit_dispatch,
    withdraw_dispatch,
)
from kaicore.analysis.trial.simulation import Located
from kaicore.errors import ConfigurationError
from kaicore.rules.events.payloads import DispatchSubmitted

from kai_cli.sources.api_requests import request_api
from kai_cli.sources.log_access import open_log
from kai_cli.sources.manifests import check_submitted, read_located
from kai_cli.sources.source import ANY_HUB, HubFlags, HubSource, LogSource

#: Between two looks at what the hub decided, seconds.
_PERIOD_S = 0.2


def submit(
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    name: str = "",
    cluster: list[str] | None = None,
    data: list[str] | None = None,
    source: HubFlags = ANY_HUB,
    hub_url: str | None = None,
    token: str | None = None,
    wait_s: float = 5,
) -> None:
    """Give objects to the hub, which makes them in one of its clusters: all of them in the same.

    Repeating the command changes nothing, so repeat it where no answer came.

    Args:
        files: manifests (YAML or JSON), folders of them, or - for standard input.
        name: of the dispatch; by default that of the first object.
        cluster: that it may run in: A,B, or given again for each; by default any.
        data: data sets that it reads, likewise; clusters near them are preferred.
        hub_url: the address of a `kai-hub` instead, from any machine; also $KAI_HUB_URL, unless another is named.
        token: key or token for it; better $KAI_API_TOKEN, which no list of processes shows.
        wait_s: seconds to wait for what the hub decides, which is then shown; not with --hub-url.
    """
    check_submitted(files)
    objects = read_located(list(files))
    submitted = named_dispatch(objects, name, clusters=_names(cluster), data=_names(data))
    address = _hub_address(hub_url, source)
    if address:
        _send(address, token, submitted, objects)
        new, decided = True, ""
    else:
        new, decided = asyncio.run(_submit(source.log, submitted, wait_s))
    done = "submitted" if new else "was submitted before, and is as it was"
    where = f" --data-dir {shlex.quote(str(source.data_dir))}" if source.data_dir is not None else ""
    print(f"dispatch {submitted.dispatch}: {done}; `kai why dispatch/{submitted.dispatch}{where}` says where it goes")
    if decided:
        print(decided)


def _hub_address(named: str | None, source: HubSource) -> str:
    if named is not None and source != HubSource():
        raise ConfigurationError("--hub-url: goes without --data-dir and --database-url")
    if source != HubSource():
        return ""
    return (named or os.environ.get("KAI_HUB_URL", "")).rstrip("/")


def _send(address: str, token: str | None, submitted: DispatchSubmitted, objects: Sequence[Located]) -> None:
    query = {"name": submitted.dispatch, "clusters": ",".join(submitted.clusters), "data": ",".join(submitted.data)}
    manifests = {"apiVersion": "v1", "kind": "List", "items": [item.object for item in objects]}
    request_api(
        f"{address}/v1/dispatches?{urllib.parse.urlencode({key: value for key, value in query.items() if value})}",
        _token(token),
        method="POST",
        body=msgspec.json.encode(manifests),
    )


async def _submit(source: LogSource, submitted: DispatchSubmitted, wait_s: float) -> tuple[bool, str]:
    """Return whether a dispatch is new, and what the hub decided about it by then."""
    async with open_log(source) as log, hub_of(log) as hub:
        new, decided = await submit_dispatch(hub, submitted), ""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                decided = await _decision(hub, submitted.dispatch)
        return new, decided


async def _decision(hub: HubLog, name: str) -> str:
    while True:
        entry = (await hub.refresh()).dispatches.get(name)
        if entry is not None and (text := decision_text(entry)):
            return text
        await asyncio.sleep(_PERIOD_S)


def withdraw(
    name: str,
    /,
    *,
    source: HubFlags = ANY_HUB,
    hub_url: str | None = None,
    token: str | None = None,
) -> None:
    """Take a dispatch back, wherever it is: its objects are deleted, and its pods end.

    Args:
        name: of the dispatch.
        hub_url: the address of a `kai-hub` instead, from any machine; also $KAI_HUB_URL, unless another is named.
        token: key or token for it; better $KAI_API_TOKEN, which no list of processes shows.
    """
    address = _hub_address(hub_url, source)
    if address:
        request_api(f"{address}/v1/dispatches/{urllib.parse.quote(name, safe='')}", _token(token), method="DELETE")
    else:
        asyncio.run(_withdraw(source.log, name))
    print(f"dispatch {name}: withdrawn")


async def _withdraw(source: LogSource, name: str) -> None:
    async with open_log(source) as log, hub_of(log) as hub:
        await withdraw_dispatch(hub, name)


def _token(named: str | None) -> str:
    return named or os.environ.get("KAI_API_TOKEN", "")


def _names(given: Sequence[str] | None) -> list[str]:
    return sorted({name for value in given or () for name in value.split(",") if name})

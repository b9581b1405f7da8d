"""`kai logs`: what a service of a stack on this machine said."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.errors import ConfigurationError
from kaicore.spelling import did_you_mean

from kai_cli.output import Output, OutputFlag
from kai_cli.sources.paths import DataDirectory, data_directory
from kai_cli.sources.source import current_cluster

#: Seconds between two looks at a file that is followed: its growth sets no event.
_LOOK_S = 0.2
#: Fields of a line that stand first.
_FIRST = ("timestamp", "level", "event")


def logs(
    service: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    tail: Annotated[int, Parameter(validator=Number(gte=0))] = 100,
    data_dir: Path | None = None,
    cluster: str | None = None,
    output: OutputFlag = "table",
) -> None:
    """Print the log of a service.

    Args:
        service: scheduler, watcher, binder, ingest, exporter, relay, api, fleet, apiserver, postgres or nats; or with
            its cluster before it, such as demo-scheduler.
        follow: go on with new lines until Ctrl-C.
        tail: how many lines to begin with; 0 for all.
        data_dir: of the `kai up` that is meant, whether it runs or not; by default .kai, or $KAI_DATA_DIR.
        cluster: its cluster, where several clusters have one; by default the current one's (`kai cluster use`).
        output: table for people, json for the lines as they were written, yaml.
    """
    file = _file_of(service, cluster, data_directory(data_dir))
    with file.open(errors="replace") as opened:
        for line in deque(opened, maxlen=tail or None):
            _print(line, output)
        if follow:
            for line in _following(file, opened):
                _print(line, output)


def _file_of(service: str, cluster: str | None, directory: DataDirectory) -> Path:
    files = {path.stem: path for path in sorted(directory.logs.glob("*.log"))}
    for server in (directory.postgres, directory.nats):
        if (log := server / f"{server.name}.log").exists():
            files[server.name] = log
    if service in files:
        return files[service]
    clusters = [name.removesuffix(f"-{service}") for name in files if name.endswith(f"-{service}")]
    if clusters:
        if cluster is not None and cluster not in clusters:
            close = did_you_mean(cluster, clusters)
            raise ConfigurationError(f"no {service} of a cluster {cluster!r}{close}; there are: {', '.join(clusters)}")
        return files[f"{cluster or current_cluster(clusters, directory)}-{service}"]
    if not files:
        raise ConfigurationError(f"no logs: nothing has run in {directory.root}")
    raise ConfigurationError(f"no service {service!r}{did_you_mean(service, files)}; there are: {', '.join(files)}")


def _following(path: Path, opened: IO[str]) -> Iterator[str]:
    """Yield lines as they come, also after the file was put aside and begun anew."""
    file, part = opened, ""
    while True:
        text = file.readline()
        part += text
        if part.endswith("\n"):
            yield part
            part = ""
        elif not text:
            try:
                begun_anew = os.fstat(file.fileno()).st_ino != path.stat().st_ino
            except FileNotFoundError:
                begun_anew = False
            if begun_anew:
                # What was written until it was put aside.
                yield from file
                file = path.open(errors="replace")  # read until the process ends
                continue
            sys.stdout.flush()
            time.sleep(_LOOK_S)


def _print(line: str, output: Output) -> None:
    if output == "json":
        sys.stdout.write(line)
        return
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        sys.stdout.write(line)
        return
    if output == "yaml":
        import yaml  # noqa: PLC0415

        sys.stdout.write("---\n" + yaml.safe_dump(fields, sort_keys=False, allow_unicode=True))
        return
    begin = "  ".join(str(fields[name]) for name in _FIRST if name in fields)
    rest = " ".join(f"{name}={_text(value)}" for name, value in fields.items() if name not in (*_FIRST, "service"))
    sys.stdout.write(f"{begin}  {rest}".rstrip() + "\n")


def _text(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode()

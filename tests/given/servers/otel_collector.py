"""A real OpenTelemetry Collector, where there is one; `KAI_TEST_COLLECTOR` names it: `go build` in tools/collector."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]


def collector() -> str:
    """The path of a Collector; empty where there is none."""
    return os.environ.get("KAI_TEST_COLLECTOR", "")


class Collected:
    def __init__(self, url: str, lines: Path) -> None:
        """Args:
        url: of its receiver, OTLP over HTTP.
        lines: to which it writes what came through.
        """
        self.url = url
        self._lines = lines

    def requests(self) -> list[Json]:
        """The contents of its pipeline, as OTLP's JSON, in order."""
        return [json.loads(line) for line in self._lines.read_text().splitlines()] if self._lines.exists() else []


@contextmanager
def collecting(root: Path, *, port: int, ready: Callable[[str], bool]) -> Iterator[Collected]:
    lines, config = root / "traces.jsonl", root / "collector.yaml"
    receiver = {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}
    pipeline = {"receivers": ["otlp"], "exporters": ["lines"]}
    service = {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"traces": pipeline}}
    exporters = {"lines": {"path": str(lines)}}
    config.write_text(yaml.safe_dump({"receivers": {"otlp": receiver}, "exporters": exporters, "service": service}))
    with (root / "collector.log").open("wb") as log:
        process = subprocess.Popen([collector(), "--config", f"file:{config}"], stdout=log, stderr=log)
        try:
            while not ready(f"http://127.0.0.1:{port}"):
                assert process.poll() is None, (root / "collector.log").read_text()
            yield Collected(f"http://127.0.0.1:{port}", lines)
        finally:
            process.terminate()
            process.wait(30)

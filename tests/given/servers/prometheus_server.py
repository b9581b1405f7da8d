"""A real Prometheus, where there is one; `KAI_TEST_PROMETHEUS` and `KAI_TEST_PROMTOOL` name it and its tool.

Else the path has them, or there is none.
"""

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml


def prometheus() -> str:
    """The path of a Prometheus; empty where there is none."""
    return os.environ.get("KAI_TEST_PROMETHEUS") or shutil.which("prometheus") or ""


def promtool() -> str:
    """The path of Prometheus' tool for rules; empty where there is none."""
    return os.environ.get("KAI_TEST_PROMTOOL") or shutil.which("promtool") or ""


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; none as long as it does not answer yet.

        Raises:
            ValueError: Prometheus refuses the expression.
        """
        return self._ask("query", query=expression).get("result", [])

    def rules(self) -> dict[str, str]:
        """The health of each rule by its name, with its error."""
        groups = self._ask("rules").get("groups", [])
        return {rule["name"]: rule["health"] + rule.get("lastError", "") for one in groups for rule in one["rules"]}

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{what}?{urlencode(parameters)}", timeout=10) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise ValueError(json.load(error)["error"]) from error
            return {}
        except OSError:
            return {}


@contextmanager
def scraping(root: Path, targets: Mapping[str, str], *, rules: Path, port: int) -> Iterator[Prometheus]:
    """Run Prometheus in a directory: it asks each target, an address by name, once in a second."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [address]}]} for name, address in targets.items()]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}
    (root / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [prometheus(), f"--config.file={root}/prometheus.yml", f"--storage.tsdb.path={root}/series"]
    with (root / "prometheus.log").open("w") as log:
        running = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            running.terminate()
            running.wait(30)

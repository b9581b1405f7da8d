"""The parts that a release must agree on (docs/how-to/release.md), and the hooks of pre-commit."""

import json
import re
import tomllib
from pathlib import Path

from kaicore.yaml_text import load_yaml

from tests.measured.beside.__main__ import OF_THE_GATE

ROOT = Path(__file__).parents[3]


def test_version_is_the_same_in_package_images_chart_plugin_and_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    manifests = [path for folder in ("k8s", "hub") for path in (ROOT / "deploy" / folder).glob("*.yaml")]
    manifests.append(ROOT / "deploy/k8s/README.md")
    images = {tag for path in manifests for tag in re.findall(r"kai-ledger:(\d[\w.]*)", path.read_text())}
    assert images == {version}
    chart = load_yaml((ROOT / "deploy/chart/Chart.yaml").read_text())
    plugin = json.loads((ROOT / "deploy/headlamp/package.json").read_text())
    assert {chart["version"], chart["appVersion"], plugin["version"]} == {version}
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_pre_commit_runs_the_tools_of_the_environment_and_fetches_none() -> None:
    config = load_yaml((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    checked = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    tools = set(re.findall(r"\$\(BIN\)/([\w-]+)", checked))
    assert tools <= {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}


def test_tests_that_a_release_needs_on_a_real_control_plane_are_there() -> None:
    assert [name for name in OF_THE_GATE if not (ROOT / name).is_file()] == []

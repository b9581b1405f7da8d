"""Policies as files and entry points: found, looked through before they run, checked, and recorded by their source."""

import json
from pathlib import Path

import pytest
from kai_cli.policies import list_policies
from kai_cli.trials.policy_trials import check
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime.policies.loading import load_policy
from kaicore.runtime.shard_settings import book_of, read_shard_settings

SOURCE = """
import numpy as np
from kaicore.policy import NoArguments, Policy


class SpotLast(Policy):
    name, version, node_labels = "spot-last", "2", ("spot",)

    class Arguments(NoArguments):
        weight: int = 500

    def score(self, nodes, work, facts):
        return np.where(nodes.labels("spot") == "true", 0, self.arguments.weight)
"""


def test_settings_name_a_file_and_record_its_digest_and_all_arguments(tmp_path: Path) -> None:
    (tmp_path / "spot.py").write_text(SOURCE)
    settings, book = tmp_path / "settings.yaml", PolicyBook()
    settings.write_text("policies:\n- {file: spot.py, arguments: {weight: 7}, queues: [research]}\n")
    config = read_shard_settings(settings, book)
    (policy,) = config.policies
    assert (policy.name, policy.version, policy.arguments) == ("spot-last", "2", {"weight": 7})
    assert (policy.queues, policy.points) == (("research",), ("score",))
    ((_, loaded),) = book.policies(config.policies)
    assert loaded.arguments.weight == 7
    assert EngineConfig.recorded(config.document()) == config
    (tmp_path / "spot.py").write_text(SOURCE + "# another\n")
    assert read_shard_settings(settings).digest() != config.digest()


def test_settings_without_policies_have_the_digest_that_they_had() -> None:
    assert "policies" not in EngineConfig().document()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import socket\n" + SOURCE, "may not import socket"),
        ("from os import path\n" + SOURCE, "may not import os"),
        ("from numpy import random\n" + SOURCE, "may not import numpy.random"),
        (SOURCE + "    other = np.random.rand\n", "may not use random"),
        (SOURCE + "OPENED = open('/etc/passwd')\n", "may not use open"),
        (SOURCE + "try:\n    pass\nexcept:\n    pass\n", "may not use a bare except"),
        (SOURCE + "try:\n    pass\nexcept (KeyError, BaseException):\n    pass\n", "may not use BaseException"),
        (SOURCE + "while 1:\n    try:\n        pass\n    finally:\n        continue\n", "may not leave finally by"),
        (SOURCE + "class Quiet:\n    def __exit__(self, *_):\n        return True\n", "may not define __exit__"),
        (SOURCE + "1 / 0\n", "ZeroDivisionError"),
        (SOURCE + "def broken(:\n", "invalid syntax"),
        (SOURCE.replace("SpotLast(Policy)", "SpotLast"), "has none"),
        (SOURCE.replace('"spot-last"', '"Spot Last"'), "name: lower case"),
        (SOURCE.replace("def score", "def scores"), "defines no point"),
        (SOURCE.replace('("spot",)', '("spot")'), "node_labels: is a text, and must be a tuple: .'spot',."),
        (SOURCE.replace("node_labels = ", "inputs = ").replace('("spot",)', '"price"'), "inputs: is a text"),
        (SOURCE.replace("node_labels = ", "within, node_labels = 'zone', "), "within: must be one of node_labels"),
        (SOURCE.replace("node_labels = ", "band = ").replace('("spot",)', '"names"'), "band: must be one of"),
        (SOURCE.replace("node_labels = ", "findings = "), "findings: must be of zones, keeps_policy, .*: spot"),
        (SOURCE.replace("node_labels = ", "findings = ").replace('("spot",)', '("zones",)'), "so live must be True"),
        (SOURCE.replace("node_labels = ", "history = "), "history: must be of owner, namespace, queue: spot"),
    ],
)
def test_a_file_that_cannot_be_a_policy_is_refused_by_name_and_line(tmp_path: Path, source: str, problem: str) -> None:
    file = tmp_path / "spot.py"
    file.write_text(source)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        load_policy(str(file))
    assert str(file) in str(refused.value)


def test_arguments_and_entry_points_that_do_not_exist_are_named(tmp_path: Path) -> None:
    file = tmp_path / "spot.py"
    file.write_text(SOURCE)
    with pytest.raises(ConfigurationError, match=r"arguments: wait: .*not permitted"):
        load_policy(str(file), {"wait": 3})
    with pytest.raises(ConfigurationError, match="no installed package has it"):
        load_policy("nobody-has-this")
    settings = tmp_path / "settings.yaml"
    settings.write_text("policies:\n- {file: spot.py}\n- {file: spot.py}\n")
    with pytest.raises(ConfigurationError, match="is there twice"):
        read_shard_settings(settings)


def install(folder: Path, name: str, module: str, source: str) -> None:
    """Make a distribution as pip would leave it: a module, and a dist-info folder with its entry point."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kai_ledger.policies]\n{name} = {module}:SpotLast\n")


def test_policy_of_a_package_is_found_by_its_entry_point_listed_checked_and_named_in_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "house-rule", "house_policies", SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    list_policies(output="json")
    (installed,) = json.loads(capsys.readouterr().out)["installed"]
    assert (installed["name"], installed["version"], installed["points"]) == ("spot-last", "2", ["score"])
    assert check("house-rule", clusters=6) == 0
    assert "policy spot-last 2 (house-rule, digest" in capsys.readouterr().out
    settings, book = tmp_path / "settings.yaml", PolicyBook()
    settings.write_text("policies:\n- {name: house-rule, arguments: {weight: 7}}\n")
    config = read_shard_settings(settings, book)
    assert [(one.name, one.arguments) for one in config.policies] == [("spot-last", {"weight": 7})]
    assert installed["digest"] == config.policies[0].digest
    assert book_of(["house-rule"]).known(config.policies) == config.policies
    install(tmp_path, "reads-a-socket", "hostile_policies", f"import socket\n{SOURCE}")
    with pytest.raises(ConfigurationError, match=r"hostile_policies\.py:1: may not import socket"):
        load_policy("reads-a-socket")

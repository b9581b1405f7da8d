"""Settings as people write them: under their former names, with a bare `off`; and the names in the log."""

from pathlib import Path

import pytest
from kaicore.analysis.trial.history.alternative import applied, read_settings
from kaicore.errors import ConfigurationError
from kaicore.kube.kinds.operands.specs import read_shard
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy
from kaicore.runtime.shard_settings import read_shard_settings

OFF = EngineConfig(repair=False, repair_after_us=5)


def test_former_names_of_settings_mean_the_same_in_a_file_a_patch_and_a_shard(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("heal: false\nheal_after_us: 5\n")
    assert read_shard_settings(file) == OFF
    assert applied(EngineConfig(), {"heal": False, "repair_after_us": 5}, where="--set") == OFF
    assert not read_shard({"metadata": {"name": "red"}, "spec": {"settings": {"heal": False}}}).faults


def test_a_bare_off_is_the_word_though_yaml_reads_it_as_false(tmp_path: Path) -> None:
    off = EngineConfig(backfill=Backfill.OFF, numa_scoring=NumaScoring(ScoringStrategy.OFF), numa=False)
    file = tmp_path / "settings.yaml"
    file.write_text("backfill: off\nnuma_scoring: {strategy: Off}\nnuma: off\n")
    assert read_shard_settings(file) == off
    settings = read_settings(["backfill=off", "numa_scoring.strategy=Off", "numa=off"])
    assert applied(EngineConfig(), settings, where="--set") == off
    written = {"backfill": False, "numa_scoring": {"strategy": False}}
    assert not read_shard({"metadata": {"name": "red"}, "spec": {"settings": written}}).faults


def test_a_setting_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("heal: false\nrepair: true\n")
    with pytest.raises(ConfigurationError, match="repair and heal are one setting: give repair"):
        read_shard_settings(file)


def test_recorded_configuration_keeps_the_former_names() -> None:
    document = OFF.document()
    assert (document["heal"], document["heal_after_us"], "repair" in document) == (False, 5, False)
    assert EngineConfig.recorded(document) == OFF

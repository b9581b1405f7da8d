"""A shard's settings as a YAML file (docs/reference/scheduler-settings.md), for the scheduler and `kai simulate`."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, current_names
from kaicore.runtime.policies import LoadedPolicy, PolicyReference, load_policies
from kaicore.yaml_text import load_yaml


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """A shard's settings, and the code of the policies that they name."""

    config: EngineConfig
    policies: tuple[LoadedPolicy, ...] = ()


def read_shard_settings(path: Path | None) -> EngineConfig:
    """Read a shard's settings without the code of policies; see `read_shard`."""
    return read_shard(path).config


def read_shard(path: Path | None) -> ShardSettings:
    """Read a shard's settings, and load the policies that they name; the defaults without a file.

    Raises:
        ConfigurationError: naming the file, the field and what is wrong.
    """
    if path is None:
        return ShardSettings(EngineConfig())
    try:
        document = load_yaml(path.read_text()) or {}
        named: object = document.pop("policies", None) if isinstance(document, dict) else None
        config = msgspec.convert(current_names(document) if isinstance(document, dict) else document, EngineConfig)
        references = msgspec.convert(named or [], list[PolicyReference])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: {problem}") from error
    loaded = load_policies(references, folder=path.parent)
    return ShardSettings(msgspec.structs.replace(config, policies=tuple(one.setting for one in loaded)), loaded)

"""A shard's settings as a YAML file (docs/reference/scheduler-settings.md), for the scheduler and `kai simulate`."""

from pathlib import Path

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, current_names
from kaicore.yaml_text import load_yaml


def read_shard_settings(path: Path | None) -> EngineConfig:
    """Read a shard's settings; the defaults without a file.

    Raises:
        ConfigurationError: naming the file, the field and what is wrong.
    """
    if path is None:
        return EngineConfig()
    try:
        document = load_yaml(path.read_text()) or {}
        return msgspec.convert(current_names(document) if isinstance(document, dict) else document, EngineConfig)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: {problem}") from error

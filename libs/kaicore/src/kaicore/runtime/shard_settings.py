"""A shard's settings as a YAML file (docs/reference/scheduler-settings.md), for the scheduler and `kai simulate`."""

from pathlib import Path

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, current_names
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime.policies import PolicyEntry, load_policies
from kaicore.yaml_text import load_yaml


def read_shard_settings(path: Path | None, book: PolicyBook | None = None) -> EngineConfig:
    """Read a shard's settings; the defaults without a file.

    Args:
        path: of the file.
        book: that its policies are entered in.

    Raises:
        ConfigurationError: naming the file, the field and what is wrong.
    """
    if path is None:
        return EngineConfig()
    try:
        document = load_yaml(path.read_text()) or {}
        if not isinstance(document, dict):
            return msgspec.convert(document, EngineConfig)
        entries = msgspec.convert(document.pop("policies", None) or (), tuple[PolicyEntry, ...])
        config = msgspec.convert(current_names(document), EngineConfig)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: {problem}") from error
    if not entries:
        return config
    policies = load_policies(entries, path.parent, PolicyBook() if book is None else book)
    return msgspec.structs.replace(config, policies=policies)

"""`--set KEY=VALUE`: a scheduler's settings with some values changed (docs/reference/scheduler-settings.md)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig
from kaicore.spelling import did_you_mean

Settings = Mapping[str, object]


def read_setting(text: str) -> tuple[str, object]:
    """Read `KEY=VALUE`, the value as YAML.

    Raises:
        ConfigurationError: it is none.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {text}: is no KEY=VALUE, such as numa=false")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--set {text}: {value!r} is no YAML") from error


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """Read several; of two for one key the last counts."""
    settings = dict(read_setting(text) for text in texts)
    applied(EngineConfig(), settings, where="--set")
    return settings


def applied(config: EngineConfig, settings: Settings, *, where: str) -> EngineConfig:
    """Return a configuration with settings changed; parts of parts are `numa_scoring.strategy`.

    Args:
        config: to begin with.
        settings: values by key.
        where: they stand, for errors.

    Raises:
        ConfigurationError: there is no such setting, or it cannot have the value.
    """
    document: dict[str, Any] = msgspec.to_builtins(config)
    for key, value in settings.items():
        into, kind = document, EngineConfig
        *outer, last = key.split(".")
        for part in outer:
            kind = _part(kind, part, key, where)
            into = into.setdefault(part, {})
        _part(kind, last, key, where)
        into[last] = value
        try:
            msgspec.convert(document, EngineConfig)
        except (msgspec.ValidationError, ConfigurationError) as error:
            raise ConfigurationError(f"{where}: {key}: {error}: {value!r}") from error
    return msgspec.convert(document, EngineConfig)


def _part(kind: Any, name: str, key: str, where: str) -> Any:
    """Return the type of a field of a struct."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
    if name not in fields:
        close = did_you_mean(name, fields)
        raise ConfigurationError(f"{where}: {key}: there is no such setting{close}")
    return fields[name]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)

"""Settings of an agent: flags and `KAI_…` variables as services have them, without pydantic.

A field is annotated with its type and `msgspec.Meta`. The constraints of `Meta` are checked, and its description is
shown.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from kaicore.errors import ConfigurationError

_PREFIX = "KAI_"

#: Endings of the names of settings that may hold passwords.
_SECRET = ("url", "secret", "password", "token")


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The common settings of agents; an agent adds its own fields."""

    http_host: Annotated[str, Meta(description="address of /healthz, /readyz and /metrics")] = "127.0.0.1"
    http_port: Annotated[int, Meta(ge=0, le=65535, description="port of /healthz, /readyz and /metrics; 0: any")] = 0
    http_fd: Annotated[
        Annotated[int, Meta(ge=3)] | None,
        Meta(description="descriptor of a socket that listens already, instead of http_host and http_port"),
    ] = None
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="least level logged")] = "info"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        hint: the type with what is annotated.
        kind: the plain type.
        required: whether there is no default.
        default: the default, if there is one.
    """

    flag: str
    hint: Any
    kind: type
    required: bool
    default: Any
    description: str


_SettingsT = TypeVar("_SettingsT", bound=AgentSettings)


def read_agent_settings(cls: type[_SettingsT], argv: list[str] | None = None) -> _SettingsT:
    """Read settings from flags and the environment; flags win.

    Raises ConfigurationError: naming each setting that is missing or impossible, and each unknown flag.

    Args:
        argv: arguments without the program's name; by default the process's.
    """
    every = settings_of(cls)
    given: dict[str, str | bool] = {
        name: os.environ[_PREFIX + name.upper()] for name in every if _PREFIX + name.upper() in os.environ
    }
    if arguments := sys.argv[1:] if argv is None else argv:
        from kaicore.runtime.agent.flags import read_flags  # noqa: PLC0415

        flags = ((one.flag, one.kind, one.description) for one in every.values())
        given |= read_flags(flags, sys.argv[0], arguments)
    problems = [
        f"{setting.flag} or ${_PREFIX}{name.upper()}: is required"
        for name, setting in every.items()
        if setting.required and name not in given
    ]
    values: dict[str, Any] = {}
    for name, value in given.items():
        try:
            values[name] = msgspec.convert(value, every[name].hint, strict=False, dec_hook=_decode)
        except msgspec.ValidationError as error:
            shown = "" if name.endswith(_SECRET) else f" (got {value!r})"
            problems.append(f"{every[name].flag}: {error}{shown}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def settings_of(cls: type[AgentSettings]) -> dict[str, Setting]:
    """Return an agent's settings by name, its own and those of every agent."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        field.name: Setting(
            flag=f"--{field.name.replace('_', '-')}",
            hint=hints[field.name],
            kind=_plain(hints[field.name]),
            required=field.required,
            default=None if field.required else field.default,
            description=next(meta.description or "" for meta in hints[field.name].__metadata__),
        )
        for field in msgspec.structs.fields(cls)
    }


def _plain(hint: Any) -> type:
    """Return a field's type without what is annotated, and without None."""
    while hasattr(hint, "__metadata__"):
        hint = get_args(hint)[0]
    parts = [part for part in get_args(hint) if part is not NoneType]
    plain: type = _plain(parts[0]) if parts else hint
    return plain


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"no setting can be of type {kind.__name__}")

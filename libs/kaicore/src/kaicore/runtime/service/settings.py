"""Settings of a service: from the environment (`KAI_…`) or from flags of the same names.

Flags are spelled as in `kai` itself: `--kebab-case`, written out in full, and `--x` or `--no-x` for switches.
"""

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict, SettingsError

from kaicore.errors import ConfigurationError
from kaicore.runtime.agent.flags import parse_flags
from kaicore.yaml_text import load_yaml, place_of_fault


class ServiceSettings(BaseSettings):
    """Settings of every service; a service adds its own fields."""

    model_config = SettingsConfigDict(
        env_prefix="KAI_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="ignore",
    )

    http_host: str = Field("127.0.0.1", description="address of /healthz, /readyz and /metrics")
    http_port: int = Field(0, ge=0, le=65535, description="port of /healthz, /readyz and /metrics; 0: any")
    http_fd: int | None = Field(
        None, ge=3, description="descriptor of a socket that listens already, instead of http_host and http_port"
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least level logged")


class LogSettings(ServiceSettings):
    """Settings of a service that reads or writes the log."""

    database_url: str = Field(description="postgresql://… of the event log")


class FeedSettings(LogSettings):
    """Settings of a service that follows the log on the bus."""

    nats_url: str | None = Field(None, description="nats://… of the bus; without it events come from the log alone")


class KubeSettings(ServiceSettings):
    """Settings of a client of the Kubernetes API."""

    kubeconfig: str = Field("", description="path of a kubeconfig; by default the pod's service account")
    kube_context: str = Field("", description="context of the kubeconfig; by default its current one")


class TlsSettings(ServiceSettings):
    """Settings of a service that can answer over HTTPS."""

    tls_cert_file: Path | None = Field(None, description="serve HTTPS with this certificate; default: HTTP")
    tls_key_file: Path | None = Field(None, description="the certificate's key; default: in the same file")


class ProxySettings(ServiceSettings):
    """Settings of a service that is asked through proxies."""

    trusted_proxy: list[IPvAnyNetwork] = Field(
        [],
        description="addresses or networks of proxies that say for whom they ask (X-Forwarded-For); by default nobody",
    )


class StrictPart(BaseModel):
    """A part of a file that an operator writes; a field that is not known is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, path: Path, *, what: str) -> Self:
        """Read it from a YAML file.

        Args:
            what: the file, in errors.

        Raises:
            ConfigurationError: it cannot be read, or makes no sense; no value is shown, for it may be a secret.
        """
        try:
            return cls.model_validate(load_yaml(path.read_bytes()) or {})
        except OSError as error:
            raise ConfigurationError(f"{what} {path}: {os.strerror(error.errno or 0)}") from error
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{what} {path}: {place_of_fault(error)}") from None
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ConfigurationError(f"{what} {path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


#: Endings of the names of settings that may hold passwords.
_SECRET = ("url", "secret", "password", "token")

_SettingsT = TypeVar("_SettingsT", bound=ServiceSettings)


def read_settings(cls: type[_SettingsT], argv: list[str] | None = None) -> _SettingsT:
    """Read settings from flags and the environment; flags win.

    Raises ConfigurationError: naming each setting that is missing or impossible, and each unknown flag.

    Args:
        argv: arguments without the program's name; by default the process's.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if not arguments:
            # Making a parser of flags takes 50 ms, and of a forked process 4 MB.
            return cls()  # type: ignore[call-arg]
        source: CliSettingsSource[ArgumentParser] = CliSettingsSource(
            cls,
            cli_parse_args=arguments,
            cli_exit_on_error=False,
            parse_args_method=parse_flags,
        )
        return cls(_cli_settings_source=source)  # type: ignore[call-arg]
    except SettingsError as error:
        raise ConfigurationError(str(error).removeprefix("error parsing CLI: ")) from None
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_problem, error.errors(include_url=False)))) from None


def _problem(fault: ErrorDetails) -> str:
    """Tell a fault, with the value that it has; not where that is all settings at once, or may hold a password."""
    setting = ".".join(str(part) for part in fault["loc"])
    if not setting:
        return fault["msg"].removeprefix("Value error, ")
    flag = f"--{setting.replace('_', '-')}"
    if fault["type"] == "missing":
        return f"{flag} or $KAI_{setting.upper()}: is required"
    shows_input = not isinstance(fault["input"], dict) and not setting.endswith(_SECRET)
    return f"{flag}: {fault['msg']}" + (f" (got {fault['input']!r})" if shows_input else "")

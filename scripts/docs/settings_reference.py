"""The page of settings: the flags and environment variables of every program."""

import typing
from collections.abc import Iterable
from enum import Enum

from kai_api.main import ApiSettings
from kai_apiserver.main import ApiServerSettings
from kai_binder.binder import BinderSettings
from kai_exporter.main import ExporterSettings
from kai_fleet.main import FleetSettings
from kai_gpu_reservation.main import GpuReservationSettings
from kai_hub.main import HubSettings
from kai_ingest.main import IngestSettings
from kai_operator.main import OperatorSettings
from kai_projector.main import ProjectorSettings
from kai_relay.main import RelaySettings
from kai_scheduler.main import SchedulerSettings
from kai_watcher.main import WatcherSettings
from kai_webhook.main import WebhookSettings
from kaicore.runtime.agent.settings import AgentSettings, settings_of
from kaicore.runtime.service import ServiceSettings
from pydantic_core import PydanticUndefined

#: Every program with settings of its own, in the order in which an event meets them.
PROGRAMS: dict[str, type[ServiceSettings] | type[AgentSettings]] = {
    "kai-watcher": WatcherSettings,
    "kai-ingest": IngestSettings,
    "kai-relay": RelaySettings,
    "kai-gpu-reservation": GpuReservationSettings,
    "kai-hub": HubSettings,
    "kai-projector": ProjectorSettings,
    "kai-scheduler": SchedulerSettings,
    "kai-binder": BinderSettings,
    "kai-api": ApiSettings,
    "kai-exporter": ExporterSettings,
    "kai-webhook": WebhookSettings,
    "kai-operator": OperatorSettings,
    "kai-apiserver": ApiServerSettings,
    "kai-fleet": FleetSettings,
}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar in a cell does not end the cell."""
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def page() -> str:
    """The flags and environment variables of every program."""
    own = described(ServiceSettings)
    rows_by_program = {
        program: [
            _row(name, one)
            for name, one in described(cls).items()
            if name not in own or one.default != own[name].default
        ]
        for program, cls in PROGRAMS.items()
    }
    sharing: dict[tuple[str, str, str], list[str]] = {}
    for program, rows in rows_by_program.items():
        for row in rows:
            sharing.setdefault(row, []).append(f"`{program}`")
    shared = {row: programs for row, programs in sharing.items() if len(programs) >= _SEVERAL}
    parts = [
        "# Settings\n\nEach line has a flag, its default and its meaning. Each setting is a flag and an environment "
        "variable: `--log-level` is `KAI_LOG_LEVEL`. The flag wins. A file sets the scheduler's rules: "
        "[the scheduler's settings](scheduler-settings.md).",
        "## Every program\n\n" + "\n".join(_line(_row(name, one)) for name, one in own.items()),
        "## Several programs\n\n"
        + "\n".join(f"{_line(row)} ({', '.join(programs)})" for row, programs in shared.items()),
    ]
    for program, rows in rows_by_program.items():
        elsewhere = DESCRIBED_ELSEWHERE.get(program)
        lines = "\n".join(_line(row) for row in rows if row not in shared)
        parts.append(f"## `{program}`\n\n" + (f"See [its page]({elsewhere})." if elsewhere else lines))
    return "\n\n".join(parts) + "\n"


#: Programs that have a page of their own, which describes each of their settings.
DESCRIBED_ELSEWHERE = {"kai-apiserver": "simulator.md", "kai-fleet": "fleet.md"}
#: A setting that so many programs have alike is listed once.
_SEVERAL = 3


class _Described(typing.NamedTuple):
    """A setting as a table shows it; `default` is `PydanticUndefined` where there is none."""

    default: object
    description: str


def described(cls: type[ServiceSettings] | type[AgentSettings]) -> dict[str, _Described]:
    if issubclass(cls, AgentSettings):
        return {
            name: _Described(PydanticUndefined if setting.required else setting.default, setting.description)
            for name, setting in settings_of(cls).items()
        }
    return {
        name: _Described(field.get_default(call_default_factory=True), field.description or "")
        for name, field in cls.model_fields.items()
    }


def _line(row: tuple[str, str, str]) -> str:
    flag, default, meaning = row
    return f"- {flag}{f' ({default})' if default else ''}: {meaning}"


def _row(name: str, setting: _Described) -> tuple[str, str, str]:
    value = setting.default
    if value is PydanticUndefined:
        shown = "required"
    elif value is None or value in ("", (), [], {}):
        shown = ""
    else:
        shown = f"`{value.value if isinstance(value, Enum) else value}`".replace("`False`", "off").replace(
            "`True`", "on"
        )
    return f"`--{name.replace('_', '-')}`", shown, setting.description

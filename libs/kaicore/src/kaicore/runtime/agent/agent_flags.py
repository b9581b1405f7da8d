"""An agent's flags. Loaded only where there are any: argparse takes 0.4 MB, and a DaemonSet sets variables."""

from argparse import SUPPRESS, ArgumentError, ArgumentParser, BooleanOptionalAction
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kaicore.errors import ConfigurationError
from kaicore.runtime.flags import parse_flags


class Flag(Protocol):
    """What a flag needs to know of its setting, which is one of `kaicore.runtime.agent.settings`."""

    @property
    def flag(self) -> str:
        """As it is written."""
        ...

    @property
    def kind(self) -> type:
        """Of its value."""
        ...

    @property
    def description(self) -> str:
        """For people."""
        ...


def read_flags(settings: Mapping[str, Flag], program: str, arguments: list[str]) -> dict[str, str | bool]:
    """Return what flags say, by the names of settings.

    Args:
        settings: what an agent has.
        program: how it was called, for `--help`.
        arguments: without the program's name.

    Raises:
        ConfigurationError: there is no such flag, or its value is missing.
    """
    parser = ArgumentParser(prog=Path(program).name, argument_default=SUPPRESS, allow_abbrev=False, exit_on_error=False)
    for setting in settings.values():
        if setting.kind is bool:
            parser.add_argument(setting.flag, action=BooleanOptionalAction, help=setting.description)
        else:
            parser.add_argument(setting.flag, metavar=setting.kind.__name__.lower(), help=setting.description)
    try:
        return vars(parse_flags(parser, arguments))
    except ArgumentError as error:
        raise ConfigurationError(str(error)) from None

"""Reading of a process's flags, and the message about unknown ones.

An agent's flags. Loaded only where there are any: argparse takes 0.4 MB, and a DaemonSet sets variables.
"""

from argparse import SUPPRESS, ArgumentError, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from kaicore.errors import ConfigurationError
from kaicore.spelling import did_you_mean


def parse_flags(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """Parse arguments, and say what is wrong as `kai` does.

    Raises ConfigurationError: there are flags or arguments that the program does not have.
    """
    parsed, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return parsed
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    there_are = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001
    if flags:
        raise ConfigurationError("; ".join(f"no such option: {flag}{did_you_mean(flag, there_are)}" for flag in flags))
    before = (arguments or [""])[(arguments or [""]).index(unknown[0]) - 1]
    switches = {
        flag: action.option_strings
        for action in parser._actions  # noqa: SLF001
        if isinstance(action, BooleanOptionalAction)
        for flag in action.option_strings
    }
    hint = f"; {before} takes no value: it is {' or '.join(switches[before])}" if before in switches else ""
    raise ConfigurationError(f"unexpected argument: {unknown[0]!r}{hint}")


def read_flags(settings: Iterable[tuple[str, type, str]], program: str, arguments: list[str]) -> dict[str, str | bool]:
    """Return what flags say, by the names of settings.

    Raises ConfigurationError: there is no such flag, or its value is missing.

    Args:
        settings: the flag, the plain type and the description of each.
        program: how it was called, for `--help`.
        arguments: without the program's name.
    """
    parser = ArgumentParser(prog=Path(program).name, argument_default=SUPPRESS, allow_abbrev=False, exit_on_error=False)
    for flag, kind, description in settings:
        if kind is bool:
            parser.add_argument(flag, action=BooleanOptionalAction, help=description)
        else:
            parser.add_argument(flag, metavar=kind.__name__.lower(), help=description)
    try:
        return vars(parse_flags(parser, arguments))
    except ArgumentError as error:
        raise ConfigurationError(str(error)) from None

"""Reading of a process's flags, and the message about unknown ones."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence

from kaicore.errors import ConfigurationError
from kaicore.spelling import did_you_mean


def parse_flags(
    parser: ArgumentParser, arguments: Sequence[str] | None, namespace: Namespace | None = None
) -> Namespace:
    """Parse arguments, and say what is wrong as `kai` does.

    Raises:
        ConfigurationError: there are flags or arguments that the program does not have.
    """
    parsed, unknown = parser.parse_known_args(arguments, namespace)
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

"""One spelling of flags in all programs, and an answer to one that is misspelled."""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated

import pytest
from kai_cli.main import app, main
from kaicore.errors import ConfigurationError
from kaicore.runtime.agent.settings import AgentSettings
from kaicore.runtime.service import ServiceSettings
from msgspec import Meta

from tests.unit.cli.test_commands import commands
from tests.unit.deploy.test_commands import AnySettings, read_by, settings_and_switches, settings_class

PROGRAMS = sorted(
    script.name for script in entry_points(group="console_scripts") if re.match(r"kai_\w+\.main:", script.value)
)
PROGRAMS.remove("kai")

#: Words for what has a name already, and that name.
ANOTHER_NAME = {
    "--context": "--kube-context",
    "--config": "--scheduler-config",
    "--fleet": "--profile",
    "--listen": "--http-host",
    "--port": "--http-port",
    "--db-url": "--database-url",
    "--dsn": "--database-url",
    "--directory": "--data-dir",
    "--cluster-name": "--cluster",
    "--format": "--output",
}


def kai_flags() -> Iterator[tuple[str, bool, list[str]]]:
    """Command of `kai`, whether its flag is on or off, and the flag's names."""
    for path, command in commands(app):
        if command.default_command is not None:
            taken = command.assemble_argument_collection(parse_docstring=False, default_parameter=app.default_parameter)
            for argument in taken:
                names = [name for name in argument.names if name.startswith("-")]
                switch = "bool" in str(argument.hint)
                yield f"kai {' '.join(path)}", switch, names + list(argument.negatives)


def test_there_is_a_program_for_each_service() -> None:
    assert len(PROGRAMS) == 14


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_spells_its_flags_as_all_do_and_answers_a_misspelled_one_with_the_one_that_was_meant(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_class(program, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        read_by(settings, ["--help"])
    assert ended.value.code in (0, None)
    output = capsys.readouterr().out
    for name, switch in settings_and_switches(settings).items():
        flag = f"--{name.replace('_', '-')}"
        assert re.search(rf"^  {flag}[ ,\n]", output, re.MULTILINE), flag
        assert ("--no-" + flag[2:] in output) == switch, flag
        assert flag not in ANOTHER_NAME
    with pytest.raises(ConfigurationError) as refused:
        read_by(settings, ["--log-levle", "debug", "--http_port=1"])
    assert str(refused.value) == (
        "no such option: --log-levle; did you mean '--log-level'?; "
        "no such option: --http_port; did you mean '--http-port'?"
    )


def test_kai_spells_its_flags_as_all_do() -> None:
    for command, switch, names in kai_flags():
        for name in names:
            assert re.fullmatch(r"-[a-z]|--[a-z]+(-[a-z]+)*", name), (command, name)
            # The format of the files that an export writes is not that of what it prints.
            assert name not in ANOTHER_NAME or (command, name) == ("kai export", "--format"), (command, name)
        for name in names:
            if switch and name.startswith("--") and not name.startswith("--no-"):
                assert f"--no-{name[2:]}" in names, (command, name)
            assert not name.startswith("--empty-")


@pytest.mark.parametrize(
    "arguments", [("get", "pods", "--clutser", "x"), ("simulate", "--clycles", "1"), ("up", "--profle", "mini")]
)
def test_kai_answers_a_misspelled_flag_likewise(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kai", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    message = capsys.readouterr()
    assert ended.value.code == 2
    assert re.search("[Dd]id you mean '?--(cluster|cycles|profile)", message.out + message.err)


class Switches(ServiceSettings):
    """Of a program with something to turn off."""

    install: bool = False


class AgentSwitches(AgentSettings, frozen=True, kw_only=True):
    install: Annotated[bool, Meta(description="install it")] = False


@pytest.mark.parametrize("switches", [Switches, AgentSwitches])
def test_what_is_on_or_off_is_turned_by_its_flag_and_a_value_is_refused(
    switches: AnySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(*arguments: str) -> bool:
        return bool(getattr(read_by(switches, list(arguments)), "install"))  # noqa: B009  # of either class

    assert install("--install")
    monkeypatch.setenv("KAI_INSTALL", "true")
    assert install()
    assert not install("--no-install")
    for arguments, message in (
        (
            ["--install", "true"],
            "unexpected argument: 'true'; --install takes no value: it is --install or --no-install",
        ),
        (["--instal"], "no such option: --instal; did you mean '--install'?"),
        (["--http-port"], "argument --http-port: expected one argument"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            read_by(switches, arguments)
        assert str(refused.value) == message

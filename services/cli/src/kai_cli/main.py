"""`kai`: one command line for everything.

A command's module is imported when the command runs, not before: what is said of it in the list of commands is read
from its source.
"""

import gc
import io
import logging
import os
import re
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError
from kaicore.errors import ConfigurationError, InvalidObject, KaiError, UnfoldableEvent
from kaicore.interpreter import version

_NO_COLOUR = "--no-color"

#: The exit code where the reader of an answer, such as `head`, has gone.
_CLOSED_PIPE = 128 + signal.SIGPIPE

#: What is imported and folded stays: looking through it for cycles takes a fifth of the time, and there are none.
_GC_THRESHOLDS = (200_000, 5, 100)

app = App(
    name="kai",
    help="kai-ledger: a Kubernetes scheduler for GPU clusters that can explain and replay itself.",
    help_epilogue=f"All commands take {_NO_COLOUR} (or $NO_COLOR). kai COMMAND --help says more.",
    version=lambda: f"kai {version()}",
    # No `--empty-x` for what may be given several times.
    default_parameter=Parameter(negative_iterable=()),
    result_action="return_value",
    print_error=False,
    exit_on_error=False,
)
_RUN, _ASK, _FILES, _UPKEEP = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Run", "Ask", "With files, without a server", "Upkeep"), start=1)
)

#: The commands: words, module and function of `kai_cli`.
_COMMANDS = (
    "up = running.up:up",
    "demo = demonstration.demo:demo",
    "load = running.load:load",
    "fleet = running.fleet:fleet",
    "cluster add = running.clusters:cluster_add",
    "cluster remove = running.clusters:cluster_remove",
    "cluster drain = running.clusters:cluster_drain",
    "cluster resume = running.clusters:cluster_resume",
    "cluster list = running.clusters:cluster_list",
    "cluster use = running.clusters:cluster_use",
    "cluster bound = running.clusters:cluster_bound",
    "submit = running.dispatches:submit",
    "withdraw = running.dispatches:withdraw",
    "agent = running.agent:agent",
    "get = asking.questions:get",
    "priority = asking.questions:priority",
    "why = asking.questions:why",
    "who = asking.questions:who",
    "reserve = asking.reservations:reserve",
    "drain = asking.reservations:drain",
    "reservations = asking.reservations:reservations",
    "state = asking.past:state",
    "diff = asking.past:diff",
    "status = asking.status:status",
    "dashboard = asking.status:dashboard",
    "logs = asking.service_logs:logs",
    "report show = history.report:show",
    "report seal = history.report:seal",
    "report verify = history.report:verify",
    "history = history.jobs:history",
    "replay = history.replaying:replay",
    "audit verify = history.audit:audit_verify",
    "audit seal = history.audit:audit_seal",
    "audit set-aside = history.audit:audit_set_aside",
    "audit placements = history.audit:audit_placements",
    "audit node = history.audit:audit_node",
    "audit group = history.audit:audit_group",
    "audit evictions = history.audit:audit_evictions",
    "shadow report = trials.shadow_report:report",
    "shadow promote = trials.shadow_report:promote",
    "shadow back = trials.shadow_report:back",
    "what-if submit = trials.before_submitting:submit_command",
    "what-if start = trials.before_submitting:start_command",
    "what-if calibration = trials.before_submitting:calibration_command",
    "what-if history = trials.what_if_history:history",
    "what-if policies = trials.what_if_history:policies",
    "mcp = asking.mcp:mcp",
    "policy list = policies:list_policies",
    "policy input = policies:policy_input",
    "policy check = trials.policy_trials:check",
    "policy history = policies:history",
    "policy try = trials.policy_trials:try_policy",
    "simulate = trials.simulate:simulate_command",
    "export = history.exporting:export",
    "report-bug = history.exporting:report_bug",
    "import log = history.exporting:import_log",
    "import openb = trials.job_traces:openb",
    "import philly = trials.job_traces:philly",
    "import dlrm = trials.job_traces:dlrm",
    "import csv = trials.job_traces:plain_csv",
    "import sources = trials.job_traces:sources",
    "dump = trials.dump:dump",
    "topology show = topology.show:show",
    "topology generate = topology.generate:generate",
    "webhook certificates = upkeep.webhook_certificates:certificates",
    "project = upkeep.database:project",
    "keys new = upkeep.keys:new",
    "migrate = upkeep.database:migrate",
    "retire = upkeep.database:retire",
    "erase pod = upkeep.database:erase_pod",
    "completion = main:completion",
)
#: Words that have commands below them.
_PARENTS = {
    "cluster": "The clusters of the hub: list, add, drain and remove them.",
    "audit": "Check the log itself, and ask who decided what.",
    "shadow": "Decisions of a shadow scheduler (`kai up --shadow`), and which scheduler decides.",
    "what-if": "Simulate other settings, nodes, queues or work; forecast when work starts.",
    "report": "GPU-hours: who held them, and what became of them.",
    "policy": "Policies of your own: check and try them before they decide.",
    "import": "Import an exported log into a database; turn traces into manifests.",
    "topology": "Network topologies: which nodes are close, and what is free there.",
    "webhook": "The admission webhook.",
    "keys": "Keys with which callers prove to the API who they are.",
    "erase": "Take personal data out of the log.",
}
_GROUPS = {
    _RUN: "up demo load fleet cluster submit withdraw agent",
    _ASK: (
        "get priority why who reserve drain reservations state diff report history status dashboard logs replay audit "
        "shadow what-if policy topology mcp"
    ),
    _FILES: "simulate export report-bug import dump",
    _UPKEEP: "webhook project keys migrate retire erase completion",
}


def _with_commands() -> None:
    """Give `app` its commands, each below the word that it begins with."""
    group_of = {name: group for group, names in _GROUPS.items() for name in names.split()}
    parents = {name: App(name=name, help=text, group=group_of[name]) for name, text in _PARENTS.items()}
    for parent in parents.values():
        app.command(parent)
    for command in _COMMANDS:
        words, _, target = command.partition(" = ")
        first, _, name = words.partition(" ")
        if name:
            parents[first].command(f"kai_cli.{target}", name=name, help=_summary(target))
        else:
            app.command(f"kai_cli.{target}", name=first, group=group_of[first], help=_summary(target))


@cache
def _source(module: str) -> str:
    return (Path(__file__).parent / f"{module.replace('.', '/')}.py").read_text("utf-8")


def _summary(target: str) -> str:
    """Return the first line of a command's docstring."""
    module, _, function = target.partition(":")
    found = re.search(rf'^(?:async )?def {function}\(.*?"""(.*?)(?:"""|\n)', _source(module), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


_with_commands()


#: What a command does where it is not said: `kai topology` shows them, `kai what-if --from …` asks of history.
_USUAL = {"report": "show", "topology": "show", "what-if": "history"}


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that completes `kai` in a shell.

    For bash: `source <(kai completion bash)` in ~/.bashrc. For zsh: `kai completion zsh > "${fpath[1]}/_kai"`.
    For fish: `kai completion fish > ~/.config/fish/completions/kai.fish`.

    Args:
        shell: bash, zsh or fish.
    """
    sys.stdout.write(app.generate_completion(prog_name="kai", shell=shell))


def _has_subcommand(arguments: list[str]) -> bool:
    """True if the line names a subcommand, or asks for help."""
    return bool(arguments) and (not arguments[0].startswith("-") or arguments[0] in ("--help", "-h"))


def spelled_out(arguments: list[str]) -> list[str]:
    """Return arguments with the subcommand that is meant where none is named."""
    usual = _USUAL.get(arguments[0]) if arguments else None
    if usual is None or _has_subcommand(arguments[1:]):
        return arguments
    return [arguments[0], usual, *arguments[1:]]


def _run(arguments: list[str]) -> int:
    """Run a command, and again where it met an event that cannot be folded: the next time it is quarantined."""
    met = set[tuple[str, int]]()
    while True:
        try:
            return app(spelled_out(arguments)) or 0
        except UnfoldableEvent as failed:
            if (failed.cluster, failed.position) in met:
                raise
            met.add((failed.cluster, failed.position))


def main() -> None:
    """Run a command: exit 0 when all is well, 1 when the answer is bad, 2 when the question is."""
    gc.set_threshold(*_GC_THRESHOLDS)
    arguments = sys.argv[1:]
    if _NO_COLOUR in arguments:
        arguments = [argument for argument in arguments if argument != _NO_COLOUR]
        os.environ["NO_COLOR"] = "1"
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            # A line of a tree that the terminal does not have is no reason to show nothing.
            stream.reconfigure(errors="replace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # With that handler, asyncio would only cancel the task: it computes on until it waits for something.
        signal.signal(signal.SIGINT, _interrupt)
    try:
        status = _status(arguments)
        # What fails at the interpreter's end could not be caught.
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader of our answer, such as `head`, has had enough.
        _silence()
        status = _CLOSED_PIPE
    except OSError as error:
        # A disk that is full or broken, a file that may not be read or written.
        with suppress(OSError):
            sys.stderr.write(f"kai: {str(error) or type(error).__name__}\n")
        _silence()
        status = 1
    sys.exit(status)


def _status(arguments: list[str]) -> int | str | None:
    """Run a command; return its exit code, having said what it failed of."""
    try:
        return _run(arguments)
    except SystemExit as ended:
        # rich, by which pages of help are written, makes 1 of a closed pipe.
        return _CLOSED_PIPE if isinstance(ended.__context__, BrokenPipeError) else ended.code
    except CycloptsError as error:
        sys.stderr.write(f"kai: {_usage_problem(error)}\n")
        return 2
    except (ConfigurationError, InvalidObject) as error:
        sys.stderr.write(f"kai: {error}\n")
        return 2
    except KaiError as error:
        sys.stderr.write(f"kai: {error}\n")
        return 1
    except UnicodeEncodeError as error:
        # Arguments are bytes, and these are no UTF-8.
        sys.stderr.write(f"kai: no Unicode text: {error.object[:100]!r}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _usage_problem(error: CycloptsError) -> str:
    """Return in one line what is wrong with the words of a command."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        command = " ".join(error.command_chain or ())
        missing = f"{error.argument.name} is missing" if error.keyword is None else f"{error.keyword} needs a value"
        return f"{command}: {missing}; --help says more"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"too much is named: {' '.join(error.unused_tokens)}"
    return " ".join(str(error).split())


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # What is left of the tasks that computed would be reported as an error.
    logging.getLogger("asyncio").disabled = True
    raise KeyboardInterrupt


def _open_closed_streams() -> None:
    """Have each standard stream that the caller has closed lead nowhere."""
    # In this order each takes its own number, which another file would take otherwise.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # until the end


def _silence() -> None:
    """Have what is still to be written lead nowhere, for it cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        # Another program may have given a stream that is no file.
        with suppress(io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()

"""`kubectl kai`: the console of `kai` where kubectl is used, with kubectl's flags and kubectl's way into the cluster.

kubectl runs any program `kubectl-NAME` of the path as `kubectl NAME`. Questions go to the API of the cluster that
kubectl talks to, through `kubectl port-forward`, unless it is said where else to ask. A namespace that is not named is
the context's, as in kubectl, and `-A` means all.
"""

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cyclopts import CycloptsError
from kaicore.errors import ClusterUnavailable, ConfigurationError, KaiError

from kai_cli import main as kai

#: Where the API is, unless `$KAI_API_SERVICE` says otherwise.
_SERVICE = "kai-system/kai-api"
_PORT = 8080

#: Seconds in which kubectl must have opened a way to the API.
_OPENED_S = 30.0

#: Where to ask is said already.
_SAID = ("--api-url", "--data-dir", "--database-url", "--file")
_SAID_BY_ENVIRONMENT = ("KAI_API_URL", "KAI_DATABASE_URL", "KAI_DATA_DIR")

#: What of `kai get` is in namespaces.
_NAMESPACED = frozenset({"pods", "pod", "po", "groups", "group", "pg"})

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


@dataclass(slots=True)
class Meant:
    """The meaning of a `kubectl kai` command line.

    Attributes:
        arguments: for `kai`.
        kubectl: flags for kubectl itself.
        asks_api: whether the API of the cluster is to be asked.
        in_namespace: whether the context's namespace is to be added.
    """

    arguments: list[str] = field(default_factory=list)
    kubectl: list[str] = field(default_factory=list)
    asks_api: bool = False
    in_namespace: bool = False


def meant(arguments: Sequence[str], environment: Mapping[str, str]) -> Meant:
    """Return what a command line of `kubectl kai` means.

    Raises ConfigurationError: a flag lacks its value, or the command cannot have it.
    """
    result, everywhere = Meant(), False
    flags = _flags(arguments)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            result.arguments += [argument, *left]
            break
        if argument in ("-A", "--all-namespaces"):
            everywhere = True
        elif name in ("--context", "--kubeconfig"):
            if not equals and not left:
                raise ConfigurationError(f"{name}: a value is missing")
            value = value if equals else left.pop(0)
            own = {"--context": "--kube-context"}.get(name, name)
            if "--kubeconfig" in flags and own not in flags:
                raise ConfigurationError(f"{name}: kai {arguments[0]} takes none; name a --kubeconfig of its own")
            target = (result.arguments, own) if own in flags else (result.kubectl, name)
            target[0].extend((target[1], value))
        else:
            result.arguments.append(argument)
    said = any(one.partition("=")[0] in _SAID for one in result.arguments)
    result.asks_api = "--api-url" in flags and not said and not any(map(environment.get, _SAID_BY_ENVIRONMENT))
    words = [one for one in result.arguments if not one.startswith("-")]
    named = any(re.fullmatch(r"(--namespace|-n)(=.*)?", one) for one in result.arguments)
    namespaced = words[:1] == ["why"] or (words[:1] == ["get"] and words[1:2] != [] and words[1] in _NAMESPACED)
    result.in_namespace = namespaced and not named and not everywhere
    return result


def _flags(arguments: Sequence[str]) -> frozenset[str]:
    """Return the flags that a command of `kai` takes; none where it is no command."""
    if not arguments or arguments[0].startswith("-"):
        return frozenset()
    try:
        _, apps, _ = kai.app.parse_commands(kai.spelled_out([one for one in arguments if one != "-A"]))
        command = apps[-1]
        if command.default_command is None:
            return frozenset()
        taken = command.assemble_argument_collection(parse_docstring=False)
    except CycloptsError:
        return frozenset()
    return frozenset(name for argument in taken for name in argument.names if name.startswith("--"))


def _kubectl(*arguments: str) -> list[str]:
    return [os.environ.get("KUBECTL", "kubectl"), *arguments]


def _context_namespace(flags: Sequence[str]) -> str:
    """Return the namespace of kubectl's context; empty where it has none."""
    view = _kubectl(*flags, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
    try:
        return subprocess.run(view, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError as error:
        raise ConfigurationError(f"{view[0]}: there is no such program; $KUBECTL names another") from error
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"kubectl: {error.stderr.strip()}") from error


@contextmanager
def _forwarded(flags: Sequence[str], service: str) -> Iterator[str]:
    """Open a way to the API, and give its address.

    Raises:
        ConfigurationError: `service` is no NAMESPACE/NAME, or there is no kubectl.
        ClusterUnavailable: kubectl cannot open it; with what it says.
    """
    namespace, slash, name = service.partition("/")
    if not slash or not namespace or not name:
        raise ConfigurationError(f"$KAI_API_SERVICE: is no NAMESPACE/NAME: {service!r}")
    command = _kubectl(*flags, "port-forward", "--namespace", namespace, f"service/{name}", f":{_PORT}")
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{command[0]}: there is no such program; $KUBECTL names another") from error
    try:
        yield f"http://127.0.0.1:{_opened(process, service)}"
    finally:
        process.terminate()
        process.communicate()


def _opened(process: "subprocess.Popen[str]", service: str) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    # It goes on reading, so that kubectl never waits for us.
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    try:
        line = lines.get(timeout=_OPENED_S)
    except queue.Empty:
        raise ClusterUnavailable(f"kubectl port-forward to {service}: no answer within {_OPENED_S:.0f} s") from None
    if (match := _FORWARDING.match(line)) is None:
        process.terminate()
        raise ClusterUnavailable(f"kubectl port-forward to {service}: {process.stderr.read().strip() or line.strip()}")
    return match[1]


def _read(reader: Iterable[str], lines: "queue.SimpleQueue[str]") -> None:
    for line in reader:
        lines.put(line)
    lines.put("")


def main() -> None:
    """Entry point of `kubectl-kai`."""
    try:
        line = meant(sys.argv[1:], os.environ)
        if line.in_namespace and (namespace := _context_namespace(line.kubectl)):
            line.arguments += ["--namespace", namespace]
        sys.argv[1:] = line.arguments
        if not line.asks_api:
            kai.main()
            return
        with _forwarded(line.kubectl, os.environ.get("KAI_API_SERVICE", _SERVICE)) as address:
            os.environ["KAI_API_URL"] = address
            kai.main()
    except KaiError as error:
        sys.stderr.write(f"kubectl kai: {error}\n")
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)


if __name__ == "__main__":
    main()

"""Policies at the edge: found as files or entry points, looked through, loaded, and entered in a book.

A file may import what `_IMPORTS` names, and not open files, run text as code, draw random numbers, or swallow what ends
it. That is found in its source, before any of it runs. It guards against accidents: a policy is trusted code of the
operator (SECURITY.md).
"""

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from kaicore.errors import ConfigurationError
from kaicore.policy import NodeFinding, PastUse, Point, Policy, PolicyBand
from kaicore.rules.engine.config import PolicyEntry, PolicySetting
from kaicore.rules.engine.policies import builtin
from kaicore.rules.engine.policies.book import PolicyBook, PolicyGuard, PolicyOverran, Unguarded
from kaicore.rules.engine.policies.builtin import BUILT_IN

#: The group of entry points that policies of packages are found by.
GROUP = "kai_ledger.policies"
_IMPORTS = frozenset(
    {
        *("__future__", "collections", "collections.abc", "dataclasses", "enum", "functools", "kaicore.policy"),
        *("math", "numpy", "numpy.typing", "pydantic", "typing"),
    }
)
_CALLS = frozenset(
    {
        "BaseException",
        "BaseExceptionGroup",
        "__import__",
        "breakpoint",
        "compile",
        "eval",
        "exec",
        "exit",
        "input",
        "open",
        "quit",
    }
)
#: Of numpy: files, and random numbers.
_ATTRIBUTES = frozenset({"fromfile", "genfromtxt", "load", "loadtxt", "memmap", "random", "save", "savetxt", "tofile"})


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy that may decide."""

    setting: PolicySetting
    kind: type[Policy]


def load_policy(
    source: str,
    arguments: Mapping[str, object] | None = None,
    queues: Sequence[str] = (),
    *,
    guard: PolicyGuard | None = None,
) -> LoadedPolicy:
    """Load one policy.

    Args:
        source: path of a file that ends in `.py`, or the name of an entry point.
        arguments: by name; the others have their defaults.
        queues: for which it decides; empty for all.
        guard: under which its file runs; by default none.

    Raises:
        ConfigurationError: naming the file, the line and what is wrong.
    """
    kind, digest = load_source(source, guard=guard)
    try:
        checked = kind.Arguments.model_validate(dict(arguments or {}))
        plain = checked.model_dump(mode="json")
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigurationError(f"{source}: arguments: {problems}") from error
    setting = PolicySetting(
        name=kind.name,
        version=kind.version,
        digest=digest,
        arguments=plain,
        queues=tuple(queues),
        points=tuple(sorted(kind.points())),
        pod_labels=tuple(kind.pod_labels),
        pod_annotations=tuple(kind.pod_annotations),
        tenants=kind.tenants,
    )
    return LoadedPolicy(setting, kind)


def load_source(source: str, *, guard: PolicyGuard | None = None) -> tuple[type[Policy], str]:
    """Load the code of a policy, whatever its arguments; returns its class, and the digest of its source.

    Args: see `load_policy`.

    Raises:
        ConfigurationError: naming the file, the line and what is wrong.
    """
    if source.endswith(".py"):
        kind, text = _from_file(Path(source), guard or Unguarded())
    else:
        kind, text = _from_entry_point(source)
    _check_class(kind, source)
    return kind, sha256(text.encode()).hexdigest()


def load_policies(entries: Iterable[PolicyEntry], folder: Path, book: PolicyBook) -> tuple[PolicySetting, ...]:
    """Load the policies of a shard's settings, and enter them in a book; returns their settings, in order.

    Raises:
        ConfigurationError: naming the policy and what is wrong.
    """
    settings: list[PolicySetting] = []
    for number, entry in enumerate(entries):
        if bool(entry.file) == bool(entry.name):
            raise ConfigurationError(f"policies[{number}]: give file or name")
        source = str(folder / entry.file) if entry.file else entry.name
        loaded = load_policy(source, entry.arguments, entry.queues, guard=book.guard)
        if any(one.name == loaded.setting.name for one in settings):
            raise ConfigurationError(f"policies[{number}]: {loaded.setting.name}: is there twice")
        book.add(loaded.kind, loaded.setting.digest)
        settings.append(loaded.setting)
    return tuple(settings)


def check_source(text: str, path: str) -> None:
    """Look a policy's source through.

    Raises:
        ConfigurationError: it does not parse, imports or calls what a policy may not, or swallows what ends it.
    """
    try:
        tree = ast.parse(text, path)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for node in ast.walk(tree):
        for imported in _imported(node):
            if imported not in _IMPORTS:
                allowed = ", ".join(sorted(_IMPORTS))
                raise ConfigurationError(f"{path}:{_line(node)}: may not import {imported}; a policy may: {allowed}")
        if isinstance(node, ast.Name) and node.id in _CALLS:
            raise ConfigurationError(f"{path}:{node.lineno}: may not use {node.id}")
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            raise ConfigurationError(f"{path}:{node.lineno}: may not use {node.attr}")
        if swallows := _swallows(node):
            raise ConfigurationError(f"{path}:{_line(node)}: {swallows}: it would swallow what ends a loop")


def _swallows(node: ast.AST) -> str:
    """Name what in a node swallows the exception by which a guard ends a policy; empty for nothing."""
    if isinstance(node, ast.ExceptHandler) and node.type is None:
        return "may not use a bare except"
    if isinstance(node, ast.FunctionDef) and node.name == "__exit__":
        return "may not define __exit__"
    if isinstance(node, ast.Try | ast.TryStar):
        inside = (one for part in node.finalbody for one in ast.walk(part))
        if any(isinstance(one, ast.Return | ast.Break | ast.Continue) for one in inside):
            return "may not leave finally by return, break or continue"
    return ""


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [f"numpy.{one.name}" for one in node.names if one.name in _ATTRIBUTES] or [module]
    return []


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _from_file(path: Path, guard: PolicyGuard) -> tuple[type[Policy], str]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: {problem}") from error
    check_source(text, str(path))
    name = f"kai_policy_{sha256(text.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and models look their module up.
    sys.modules[name] = module
    try:
        guard.run(path.name, lambda: exec(compile(text, str(path), "exec"), module.__dict__))  # noqa: S102 (looked through)
    except PolicyOverran as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{path}: {type(error).__name__}: {error}") from error
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name]
    kinds = [one for one in own if issubclass(one, Policy)]
    if len(kinds) != 1:
        names = ", ".join(one.__name__ for one in kinds) or "none"
        raise ConfigurationError(f"{path}: needs one class that derives from kaicore.policy.Policy, and has {names}")
    return kinds[0], text


def _from_entry_point(name: str) -> tuple[type[Policy], str]:
    found = list(entry_points(group=GROUP, name=name))
    if not found and name in BUILT_IN:
        return BUILT_IN[name], Path(builtin.__file__).read_text()
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none"
        raise ConfigurationError(f"policy {name}: no installed package has it (entry points of {GROUP}: {known})")
    try:
        kind = found[0].load()
    except Exception as error:
        raise ConfigurationError(f"policy {name}: {type(error).__name__}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise ConfigurationError(f"policy {name}: {found[0].value} is no class that derives from kaicore.policy.Policy")
    path = Path(sys.modules[kind.__module__].__file__ or "")
    text = path.read_text()
    check_source(text, str(path))
    return kind, text


def _check_class(kind: type[Policy], source: str) -> None:
    """Raise ConfigurationError if what a class says of itself cannot be."""
    if not kind.name or not set(kind.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"):
        raise ConfigurationError(f"{source}: name: lower case, digits and -: {kind.name!r}")
    if not kind.version:
        raise ConfigurationError(f"{source}: version: is empty")
    for declared in ("node_labels", "pod_labels", "pod_annotations", "inputs", "history", "findings"):
        if isinstance(given := getattr(kind, declared), str):
            raise ConfigurationError(f"{source}: {declared}: is a text, and must be a tuple: ({given!r},)")
    if not kind.points():
        points = ", ".join(Point)
        raise ConfigurationError(f"{source}: {kind.name}: defines no point; the points are {points}")
    if kind.within and kind.within not in kind.node_labels:
        raise ConfigurationError(f"{source}: {kind.name}: within: must be one of node_labels: {kind.within!r}")
    if kind.band not in tuple(PolicyBand):
        bands = ", ".join(PolicyBand)
        raise ConfigurationError(f"{source}: {kind.name}: band: must be one of {bands}: {kind.band!r}")
    for declared, members in (("history", PastUse), ("findings", NodeFinding)):
        if unknown := [one for one in getattr(kind, declared) if one not in tuple(members)]:
            known = ", ".join(members)
            raise ConfigurationError(f"{source}: {kind.name}: {declared}: must be of {known}: {', '.join(unknown)}")
    if kind.findings and not kind.live:
        raise ConfigurationError(f"{source}: {kind.name}: findings: follow charges, so live must be True")

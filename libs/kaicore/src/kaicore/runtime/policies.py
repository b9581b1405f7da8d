"""Policies of an operator: found as files or by entry points, checked, and entered into the book of a process.

A shard's settings name them:

    policies:
      - file: spot_last.py            # beside the settings' file, or an absolute path
        arguments: {weight: 700}
        queues: [research]            # for which it decides; all without
      - name: near-the-data           # of an installed package's entry point `kai_ledger.policies`

A policy is one module. The digest of its source stands in each cycle's record, so all of its code is in that module: it
imports a few libraries of the field and `kaicore.policy`, and nothing else. This check finds accidents. It is no wall
against an operator's own code, which is trusted.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from re import fullmatch
from types import ModuleType

import msgspec
from pydantic import BaseModel, ValidationError

from kaicore.errors import ConfigurationError
from kaicore.policy import Policy, PolicyBand
from kaicore.rules.engine.policies.book import PolicyBook, PolicyGuard
from kaicore.rules.engine.policies.setting import PolicySetting
from kaicore.spelling import did_you_mean

#: Where packages make their policies known.
ENTRY_POINTS = "kai_ledger.policies"
#: Modules that a policy may import, with what is below them.
_IMPORTS = ("__future__", "collections", "dataclasses", "enum", "functools", "math", "numpy", "pydantic", "typing")
_FACE = "kaicore.policy"
#: Built-in names that reach beyond the facts which a policy is given.
_NAMES = frozenset(
    ("__builtins__", "__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "open", "print")
)
#: Attributes of NumPy that draw, read or write, and those that lead out of a module.
_ATTRIBUTES = frozenset(
    (
        *("DataSource", "ctypeslib", "fromfile", "genfromtxt", "load", "loadtxt", "memmap", "random"),
        *("save", "savetxt", "savez", "savez_compressed", "tofile"),
        *("__builtins__", "__globals__", "__import__", "__subclasses__"),
    )
)
_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class PolicyReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy in a shard's settings.

    Attributes:
        file: of its source; relative to the settings' folder.
        name: of an entry point, where no file is named.
        arguments: by name.
        queues: for which it decides; empty for all.
    """

    file: str = ""
    name: str = ""
    arguments: dict[str, object] = {}
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy's code and setting.

    Attributes:
        kind: the class.
        setting: as cycles record it.
        source: the file that it comes from.
    """

    kind: type[Policy]
    setting: PolicySetting
    source: Path

    def make(self) -> Policy:
        """Return a policy with the setting's arguments."""
        return self.kind(self.kind.Arguments.model_validate(self.setting.arguments))


class _SourceLoader(InspectLoader):
    """Makes a module of the very text that was digested and checked."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self._text


def load_policy(reference: PolicyReference, *, folder: Path = Path()) -> LoadedPolicy:
    """Load the policy that settings name.

    Args:
        reference: to it.
        folder: of the settings.

    Raises:
        ConfigurationError: naming the file and what is wrong: it is absent, imports what it may not, has no policy or
            several, or does not take the arguments.
    """
    if bool(reference.file) == bool(reference.name):
        raise ConfigurationError("policies: each has either a file or the name of an entry point")
    path = folder / reference.file if reference.file else _file_of(_entry_point(reference.name))
    try:
        source = path.read_bytes()
        text = source.decode()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"{path}: {problem}") from error
    digest = sha256(source).hexdigest()
    _check(text, path)
    kind = _policy_of(_module(text, digest, path), path)
    _check_declarations(kind, path)
    try:
        arguments = kind.Arguments.model_validate(reference.arguments)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigurationError(f"{path}: arguments: {told}") from error
    return LoadedPolicy(kind, _setting(kind, digest, arguments, reference.queues), path)


def load_policies(references: Sequence[PolicyReference], *, folder: Path = Path()) -> tuple[LoadedPolicy, ...]:
    """Load the policies of a shard, in their order.

    Raises:
        ConfigurationError: one is wrong (`load_policy`), or two have one name.
    """
    loaded = tuple(load_policy(reference, folder=folder) for reference in references)
    names = [one.setting.name for one in loaded]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"policies: {name} is there twice")
    return loaded


def book_of(loaded: Sequence[LoadedPolicy], guard: PolicyGuard | None = None) -> PolicyBook:
    """Return a book with policies, which run under a guard."""
    book = PolicyBook(guard)
    for one in loaded:
        book.add(one.kind, one.setting.digest)
    return book


def installed_policies() -> Iterator[EntryPoint]:
    """Yield the entry points of policies, by name."""
    yield from sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name)


def _entry_point(name: str) -> EntryPoint:
    by_name = {one.name: one for one in installed_policies()}
    if name not in by_name:
        raise ConfigurationError(f"policies: no package here has the policy {name!r}{did_you_mean(name, by_name)}")
    return by_name[name]


def _file_of(entry: EntryPoint) -> Path:
    """Return the file of an entry point's module, without importing it."""
    spec = find_spec(entry.module)
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"policies: {entry.name}: there is no module {entry.module}")
    return Path(spec.origin)


def _check(text: str, path: Path) -> None:
    """Look at a policy's source.

    Raises:
        ConfigurationError: naming file and line.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else 1
        raise ConfigurationError(f"{path}:{line}: is no Python: {error}") from error
    for node in ast.walk(tree):
        problem = _problem(node)
        if problem:
            raise ConfigurationError(f"{path}:{getattr(node, 'lineno', 1)}: a policy may not {problem}")


def _problem(node: ast.AST) -> str:
    if isinstance(node, ast.Import):
        imported = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        imported = [node.module or "" if node.level == 0 else "a module beside it"]
        taken = [alias.name for alias in node.names if alias.name in _ATTRIBUTES]
        if taken:
            return f"use {taken[0]}"
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        return f"use {node.id}"
    elif isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
        return f"use {node.attr}"
    else:
        return ""
    for name in imported:
        parts = name.split(".")
        if name != _FACE and (parts[0] not in _IMPORTS or not _ATTRIBUTES.isdisjoint(parts)):
            return f"import {name}"
    return ""


def _module(text: str, digest: str, path: Path) -> ModuleType:
    """Return a policy's module; one of the same source is made once."""
    name = f"kai_policy_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _SourceLoader(text)
    spec = spec_from_loader(name, loader, origin=str(path))
    assert spec is not None, "it has a loader"
    module = module_from_spec(spec)
    # Dataclasses and pydantic look a class's module up by its name.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    # A module may raise anything.
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"{path}: raises when it is loaded: {type(error).__name__}: {error}") from error
    return module


def _policy_of(module: ModuleType, path: Path) -> type[Policy]:
    kinds = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        found = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise ConfigurationError(f"{path}: has one class that derives from Policy; found: {found}")
    return kinds[0]


def _check_declarations(kind: type[Policy], path: Path) -> None:
    where = f"{path}: {kind.__name__}"
    if not isinstance(kind.name, str) or not fullmatch(_NAME, kind.name):
        raise ConfigurationError(f"{where}.name: lower case, digits and -: {kind.name!r}")
    if not isinstance(kind.version, str) or not kind.version:
        raise ConfigurationError(f"{where}.version: is missing: {kind.version!r}")
    if not kind.points():
        raise ConfigurationError(f"{where}: defines none of filter, score, order, victims and admit")
    for field in ("node_labels", "pod_labels", "pod_annotations", "inputs"):
        value = getattr(kind, field)
        if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
            raise ConfigurationError(f"{where}.{field}: is a tuple of texts, such as ('a',): {value!r}")
    try:
        PolicyBand(kind.band)
    except ValueError as error:
        raise ConfigurationError(f"{where}.band: one of {', '.join(PolicyBand)}: {kind.band!r}") from error
    if not (isinstance(kind.Arguments, type) and issubclass(kind.Arguments, BaseModel)):
        raise ConfigurationError(f"{where}.Arguments: derives from NoArguments")


def _setting(kind: type[Policy], digest: str, arguments: BaseModel, queues: Sequence[str]) -> PolicySetting:
    plain: Mapping[str, object] = arguments.model_dump(mode="json")
    return PolicySetting(
        name=kind.name,
        version=kind.version,
        digest=digest,
        arguments=dict(plain),
        queues=tuple(queues),
        points=tuple(sorted(point.value for point in kind.points())),
        pod_labels=kind.pod_labels,
        pod_annotations=kind.pod_annotations,
        tenants=kind.tenants,
    )

"""Kubernetes objects as text: YAML or JSON, several documents, `List` kinds.

Objects of a world have names, namespaces and uids: their own, or generated ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import yaml

from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.rules.objects.mappings import Object, derived_uid, suffix
from kaicore.rules.objects.wire import subject_of
from kaicore.yaml_text import SafeLoader, fault_text

#: Group and kind.
GroupKind = tuple[str, str]

_encoder = msgspec.json.Encoder(order="deterministic")


class Located(NamedTuple):
    """An object, and where it was found, for errors: `a.yaml, document 2`."""

    where: str
    object: Object


def located(where: str, error: InvalidObject) -> InvalidObject:
    """Return an error that says where its object was found."""
    return InvalidObject(f"{where}: {error.subject}", error.field, error.value, error.problem)


class Identities:
    """The identities of a world's objects.

    Attributes:
        problems: objects without a name, and those that are there twice.
        seen: the first object of each group, kind, namespace and name.
    """

    def __init__(self) -> None:
        self.problems: list[InvalidObject] = []
        self.seen: dict[tuple[str, str, str, str], Located] = {}
        self._uids: dict[str, Located] = {}

    def identify(
        self, objects: list[tuple[GroupKind, Located]], is_namespaced: Callable[[GroupKind], bool]
    ) -> list[tuple[GroupKind, Located]]:
        """Give each object the name, namespace and uid that it lacks; in order of kind, namespace and name."""
        named: list[tuple[GroupKind, Located]] = []
        nameless: list[tuple[GroupKind, Located]] = []
        for kind, item in objects:
            try:
                metadata = _metadata(item.object, namespaced=is_namespaced(kind))
            except InvalidObject as error:
                self.problems.append(located(item.where, error))
                continue
            whole = Located(item.where, {**item.object, "metadata": metadata})
            (named if metadata.get("name") else nameless).append((kind, whole))
        ordinals: Counter[tuple[str, str, str]] = Counter()
        # Two of one generateName are distinguished by what they say, then by number.
        for kind, item in sorted(nameless, key=lambda one: (one[0], _encoder.encode(one[1].object))):
            metadata = item.object["metadata"]
            base = (kind[1], metadata["namespace"], metadata["generateName"])
            ordinals[base] += 1
            metadata["name"] = metadata["generateName"] + suffix(*base, str(ordinals[base]))
            named.append((kind, item))
        unique = []
        for kind, item in sorted(named, key=_order):
            metadata = item.object["metadata"]
            metadata["uid"] = metadata.get("uid") or derived_uid(*kind, metadata["namespace"], metadata["name"])
            key = (*kind, metadata["namespace"], metadata["name"])
            if self._is_second(item, "name", self.seen.setdefault(key, item)):
                continue
            if self._is_second(item, "uid", self._uids.setdefault(metadata["uid"], item)):
                continue
            unique.append((kind, item))
        return unique

    def _is_second(self, item: Located, field_: str, first: Located) -> bool:
        """True if another object with this name or uid was found first, which is a problem."""
        if first is item:
            return False
        metadata = item.object["metadata"]
        subject = subject_of(item.object["kind"], metadata["namespace"], metadata["name"])
        problem = InvalidObject(subject, f"metadata.{field_}", metadata[field_], f"is there already, in {first.where}")
        self.problems.append(located(item.where, problem))
        return True


def _metadata(wire: Object, *, namespaced: bool) -> Object:
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise InvalidObject(wire["kind"], "metadata.name", metadata, "is missing")
    metadata = dict(metadata)
    subject = f"{wire['kind']} {metadata.get('name') or metadata.get('generateName')}"
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        value = metadata.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidObject(subject, f"metadata.{name}", value, "must be a text")
    metadata["namespace"] = (metadata.get("namespace") or "default") if namespaced else ""
    return metadata


def _order(one: tuple[GroupKind, Located]) -> tuple[GroupKind, str, str, str]:
    kind, item = one
    return kind, item.object["metadata"]["namespace"], item.object["metadata"]["name"], item.where


#: Values of a document with its aliases written out: a few lines of aliases of aliases can stand for billions.
_MOST_VALUES = 10_000_000
_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Reading:
    """The contents of files.

    Attributes:
        objects: of any kind, each with file and document; they have a text as apiVersion and as kind, nothing more is
            known of them.
        problems: files that cannot be parsed, and documents that are no Kubernetes objects.
        strangers: documents of folders that do not mean to be Kubernetes objects, such as a chart's values.
    """

    objects: list[Located] = field(default_factory=list)
    problems: list[KaiError] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)


def read_text(reading: Reading, name: str, text: bytes, *, is_json: bool | None, named: bool) -> None:
    """Take in a file.

    Args:
        is_json: None where the name does not tell.
        named: whether the very file was named; else it was found in a folder.
    """
    try:
        documents = _documents(name, text, is_json=is_json)
    except InvalidObject as error:
        reading.problems.append(error)
        return
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        problem = fault_text(error) if isinstance(error, yaml.YAMLError) else error
        reading.problems.append(ConfigurationError(f"{name}: {problem}"))
        return
    for number, document in enumerate(documents, start=1):
        where = f"{name}, document {number}"
        if document is None:
            continue
        if not named and not (isinstance(document, dict) and ("apiVersion" in document or "kind" in document)):
            reading.strangers.append(where)
        else:
            take_in(reading, document, where)


def _documents(name: str, text: bytes, *, is_json: bool | None) -> list[Any]:
    """Parse a file; what may be either is YAML unless it is JSON: that is parsed many times faster."""
    if is_json:
        return [msgspec.json.decode(text)]
    if text.lstrip().startswith(b"{"):
        try:
            return [msgspec.json.decode(text)]
        except msgspec.DecodeError as error:
            not_json = error
        try:
            return list(_yaml_documents(name, text))
        except yaml.YAMLError:
            # Text without a file name need not be YAML.
            if is_json is None:
                raise not_json from None
            raise
    return list(_yaml_documents(name, text))


class _Twice(Exception):
    def __init__(self, mapping: yaml.MappingNode, key: yaml.ScalarNode) -> None:
        super().__init__(key.value)
        self.mapping = mapping
        self.key = key


class _Loader(SafeLoader):
    """Refuses mappings that have a key twice, of which YAML libraries take the last without a word."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        #: Mappings that were looked at, before anything was merged into them.
        self.seen: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self.seen:
            self.seen.add(id(node))
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG:
                    if key.value in keys:
                        raise _Twice(node, key)
                    keys.add(key.value)
        super().flatten_mapping(node)


def _yaml_documents(name: str, text: bytes) -> Iterator[Any]:
    loader = _Loader(text)
    number = 0
    try:
        while loader.check_node():
            number += 1
            loader.seen.clear()
            node = loader.get_node()
            assert node is not None  # there is one, says check_node
            if _expanded_size(node) > _MOST_VALUES:
                raise InvalidObject(
                    f"{name}, document {number}", "aliases", "*", f"stand for more than {_MOST_VALUES} values"
                )
            try:
                document = loader.construct_document(node)
            except _Twice as twice:
                line = twice.key.start_mark.line + 1
                path = ".".join([*_path_to(twice.mapping, node), twice.key.value]).replace(".[", "[")
                raise InvalidObject(
                    f"{name}, document {number}", path, twice.key.value, f"is there twice, again in line {line}"
                ) from None
            # YAML knows more than JSON does: times, dates, numbers that are none.
            yield msgspec.json.decode(msgspec.json.encode(document))
    finally:
        loader.dispose()


def _expanded_size(root: yaml.Node) -> int:
    """Count the values of a document once its aliases are written out; one that contains itself has more than any."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()
    todo = [(root, False)]
    while todo:
        node, done = todo.pop()
        inside = _inside(node)
        if done:
            open_.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in inside)
        elif id(node) in open_:
            return _MOST_VALUES + 1
        elif id(node) not in sizes:
            open_.add(id(node))
            todo.append((node, True))
            todo += [(child, False) for child in inside if id(child) not in sizes]
    return sizes[id(root)]


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _path_to(wanted: yaml.Node, node: yaml.Node) -> list[str]:
    """Return the steps that lead from a node to one inside it; none if it is not there."""
    todo: list[tuple[yaml.Node, list[str]]] = [(node, [])]
    while todo:
        below, path = todo.pop()
        if below is wanted:
            return path
        if isinstance(below, yaml.MappingNode):
            todo += [(value, [*path, str(key.value)]) for key, value in below.value]
        elif isinstance(below, yaml.SequenceNode):
            todo += [(value, [*path, f"[{index}]"]) for index, value in enumerate(below.value)]
    return []


def take_in(reading: Reading, document: Any, where: str) -> None:
    """Take in a document: an object, or a list of objects, each found there."""
    if not isinstance(document, dict):
        reading.problems.append(InvalidObject(where, "document", document, "not a Kubernetes object"))
        return
    for field_ in ("apiVersion", "kind"):
        if not isinstance(document.get(field_), str):
            reading.problems.append(InvalidObject(where, field_, document.get(field_), "missing or no text"))
            return
    kind = document["kind"]
    if not (kind.endswith("List") and (kind == "List" or "items" in document)):
        reading.objects.append(Located(where, document))
        return
    items = document.get("items") or []
    if not isinstance(items, list):
        reading.problems.append(InvalidObject(where, "items", items, "not a list"))
        return
    # An API server's lists say once what their items are.
    item_type = {} if kind == "List" else {"apiVersion": document["apiVersion"], "kind": kind.removesuffix("List")}
    for number, item in enumerate(items):
        take_in(reading, {**item_type, **item} if isinstance(item, dict) else item, f"{where}, items[{number}]")

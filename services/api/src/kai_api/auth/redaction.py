"""Removes the names of objects in other namespaces from texts.

A pod's reasons and story name others: the holder of a node, or the group for which the pod was evicted. Our texts
write an object of a namespace as `namespace/name` or `Kind/namespace/name`. Everything of that form is replaced unless
the caller may see its namespace: rather too much than too little. Names of resources and labels have a dot before the
slash, which no namespace has.
"""

import re

from kaicore.runtime.access.scopes import View

#: Stands for what may not be named.
HIDDEN = "(in another namespace)"

_path = re.compile(r"[\w.\-*]+(?:/[\w.\-*]+)+")

#: Fields whose values are ids of our own, not names.
_IDS = frozenset({"cycle", "correlation", "shard", "source", "traceparent", "uid", "id", "cause"})
#: Streams that are not of a namespace: what one pod is about is checked before.
_KEPT = frozenset({"stream", "cluster", "kind", "type", "position", "hash"})


def redacted(value: object, view: View) -> object:
    """Return an answer, as dictionaries and lists, without the names of what is in namespaces that are not seen."""
    if isinstance(value, dict):
        return {
            _text(key, view): item if key in _IDS or key in _KEPT else redacted(item, view)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [redacted(item, view) for item in value]
    return _text(value, view) if isinstance(value, str) else value


def _text(text: str, view: View) -> str:
    return _path.sub(lambda match: match[0] if _open(match[0], view) else HIDDEN, text) if "/" in text else text


def _open(path: str, view: View) -> bool:
    parts = path.rstrip(".").split("/")
    if all(part.isdigit() for part in parts):
        return True
    if len(parts) == 2:
        first, _ = parts
        return "." in first or first != first.lower() or view.sees(first)
    # Kind, namespace, name, or deeper; a group's kind may have its API group.
    return view.sees(parts[0]) or view.sees(parts[1])

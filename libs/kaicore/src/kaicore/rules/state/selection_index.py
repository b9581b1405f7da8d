"""The live pods that each selection selects, kept up to date pod by pod and selection by selection.

Only selections that some class uses are known, so without such rules this costs next to nothing. A selection that names
values of a label looks only at pods with these values, and a pod only at selections that name its values.
"""

from collections.abc import Iterable, Iterator

from kaicore.rules.engine.constraints.pod_marks import selection_mark
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.selector import PodSelector, Requirement, Selection, meets


class SelectionIndex:
    """Selections by mark, pods by uid."""

    def __init__(self) -> None:
        self._selections: dict[str, Selection] = {}
        self._users: dict[str, int] = {}
        self._pods: dict[str, Pod] = {}
        self._selected: dict[str, set[str]] = {}
        self._namespaces: dict[str, dict[str, str]] = {}
        #: Uids by the value of each label that some selection names values of.
        self._by_label: dict[str, dict[str, set[str]]] = {}
        #: Marks by label and value that pods must have; under None those that name no values.
        self._by_value: dict[tuple[str, str] | None, set[str]] = {}

    def marks_of(self, uid: str) -> tuple[str, ...]:
        """Return the marks of the selections that select a pod, sorted."""
        return tuple(sorted(self._selected.get(uid, ())))

    def marks_while(self, uid: str, *, terminating: bool) -> tuple[str, ...]:
        """Return them without those that do not select terminating pods, if it is one."""
        marks = self.marks_of(uid)
        if not terminating:
            return marks
        return tuple(mark for mark in marks if not any(selector.living for selector in self._selections[mark]))

    def add_selection(self, selection: Selection) -> list[str]:
        """Know of a selection once more; return the uids of the pods that it now selects and did not before."""
        mark = selection_mark(selection)
        self._users[mark] = self._users.get(mark, 0) + 1
        if self._users[mark] > 1:
            return []
        self._selections[mark] = selection
        named = _named(selection)
        if named is not None:
            self._index(named.key)
        for place in _places(named):
            self._by_value.setdefault(place, set()).add(mark)
        uids = []
        for uid in self._candidates(named):
            if self._selects(selection, self._pods[uid]):
                self._selected.setdefault(uid, set()).add(mark)
                uids.append(uid)
        return uids

    def remove_selection(self, selection: Selection) -> list[str]:
        """Forget a selection once; return the uids of the pods that it no longer selects."""
        mark = selection_mark(selection)
        self._users[mark] -= 1
        if self._users[mark]:
            return []
        del self._users[mark], self._selections[mark]
        named = _named(selection)
        for place in _places(named):
            self._by_value[place].discard(mark)
            if not self._by_value[place]:
                del self._by_value[place]
        uids = []
        for uid in self._candidates(named):
            marks = self._selected.get(uid)
            if marks is not None and mark in marks:
                uids.append(uid)
                self._drop(uid, mark)
        return uids

    def set_pod(self, pod: Pod) -> bool:
        """Know of a pod, new or changed; return whether it is selected otherwise than before."""
        before = self._pods.get(pod.uid)
        if before is not None and before.labels == pod.labels:
            self._pods[pod.uid] = pod
            return False
        old = self._selected.pop(pod.uid, set())
        if before is not None:
            self._unindex(before)
        self._pods[pod.uid] = pod
        for key, by_value in self._by_label.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], set()).add(pod.uid)
        if not self._selections:
            return bool(old)
        marks = {mark for mark in self._candidate_marks(pod) if self._selects(self._selections[mark], pod)}
        if marks:
            self._selected[pod.uid] = marks
        return marks != old

    def remove_pod(self, uid: str) -> None:
        """Forget a pod."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._selected.pop(uid, None)
            self._unindex(pod)

    def set_namespace(self, name: str, labels: dict[str, str] | None) -> list[str]:
        """Know of a namespace's labels, or of its end; return the uids of pods that are selected otherwise now."""
        if self._namespaces.get(name) == labels:
            return []
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        watching = [
            mark
            for mark, selection in self._selections.items()
            if any(selector.namespace_labels is not None for selector in selection)
        ]
        changed = []
        for uid, pod in self._pods.items() if watching else ():
            if pod.namespace != name:
                continue
            before = set(self._selected.get(uid, ()))
            for mark in watching:
                if self._selects(self._selections[mark], pod):
                    self._selected.setdefault(uid, set()).add(mark)
                else:
                    self._drop(uid, mark)
            if self._selected.get(uid, set()) != before:
                changed.append(uid)
        return changed

    def _selects(self, selection: Selection, pod: Pod) -> bool:
        return all(self.meets(selector, pod) for selector in selection)

    def meets(self, selector: PodSelector, pod: Pod) -> bool:
        """Tell whether a selector selects a pod."""
        if selector.labels is None or not meets(pod.labels, selector.labels):
            return False
        if pod.namespace in selector.namespaces:
            return True
        # Of a namespace that was not observed, no label is known.
        of_namespace = selector.namespace_labels
        return of_namespace is not None and meets(self._namespaces.get(pod.namespace, {}), of_namespace)

    def _index(self, key: str) -> None:
        if key in self._by_label:
            return
        by_value: dict[str, set[str]] = {}
        for uid, pod in self._pods.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], set()).add(uid)
        self._by_label[key] = by_value

    def _unindex(self, pod: Pod) -> None:
        for key, by_value in self._by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                by_value[value].discard(pod.uid)
                if not by_value[value]:
                    del by_value[value]

    def _candidates(self, named: Requirement | None) -> list[str]:
        if named is None:
            return list(self._pods)
        by_value = self._by_label[named.key]
        return [uid for value in named.values for uid in by_value.get(value, ())]

    def _candidate_marks(self, pod: Pod) -> Iterator[str]:
        yield from self._by_value.get(None, ())
        if self._by_value:
            for pair in pod.labels.items():
                yield from self._by_value.get(pair, ())

    def _drop(self, uid: str, mark: str) -> None:
        marks = self._selected.get(uid)
        if marks is not None:
            marks.discard(mark)
            if not marks:
                del self._selected[uid]


def _named(selection: Selection) -> Requirement | None:
    """Return the requirement of a selection that names the fewest values; None if it names none."""
    named = [item for selector in selection for item in selector.labels or () if item.operator == "In"]
    return min(named, key=lambda item: (len(item.values), item.key, item.values), default=None)


def _places(named: Requirement | None) -> Iterable[tuple[str, str] | None]:
    return (None,) if named is None else ((named.key, value) for value in named.values)

"""A pod's personal data in events, and its replacement.

A pod's name is replaced by a pseudonym in every place. The places are the pod's own events, the position beside its uid
in events about several pods, and `namespace/name` in reasons, keys and messages. Values of labels and annotations are
replaced in the pod's own events. Everything else stays, so events keep their meaning.

Where all else is equal, pods are decided on in the order of their names. So the pseudonym has the name's place among
the names of the namespace's pods. It begins with the common prefix of both neighbours, and goes on with the pod's uid.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kaicore.rules.events.envelope import Event

#: Stands for the value of a label or annotation.
ERASED = "erased"

#: Domains of labels and annotations that schedulers read: their values name queues, groups and policies.
_SCHEDULERS = ("kai.scheduler", "k8s.io", "kubernetes.io", "volcano.sh", "koordinator.sh", "kubeflow.org", "ray.io")
#: And those without a domain, or with one of an older kind.
_SCHEDULERS_WORDS = frozenset(
    {
        "mpi-job-role",
        "pod-group-name",
        "pod-template-hash",
        "priorityClassName",
        "replica-type",
        "runai/queue",
    }
)
#: The one of these domains with values that people choose.
_PEOPLES = "app.kubernetes.io"

#: Fields beside a pod's uid that hold its name.
_NAMES = frozenset({"name", "pod"})

#: Fields of a pod's own events in which its name stands as a word of a text.
_TEXTS = frozenset({"name", "message", "missed", "detail", "example"})

Document = dict[str, Any]


def pseudonym(uid: str, *, before: str = "", after: str = "") -> str:
    """Return what a pod is called once its name is erased; it stands between its neighbours, as the name did.

    Args:
        before: the name right before its own in order, empty for none.
        after: the name right after it, empty for none.
    """
    mark = f"{ERASED}-{uid}"
    if not after:
        return f"{_one_more(before, '~')}{mark}"
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    if common == len(before):
        return f"{before}{_one_more(after[common:], '!')}{mark}"
    return f"{before[: common + 1]}{_one_more(before[common + 1 :], '~')}{mark}"


def _one_more(text: str, sign: str) -> str:
    """Return a sign so often that the result is beyond a text: `~` comes after all that names are made of, `!` before.

    A neighbour that was erased has such signs, too.
    """
    return sign * (len(text) - len(text.lstrip(sign)) + 1)


@dataclass(frozen=True, slots=True)
class Erasure:
    """The pods with personal data to erase: all that ever had one name.

    Attributes:
        namespace, name: theirs.
        uids: theirs, the oldest first.
        pseudonym: what they are called from then on.
        all_labels: whether labels and annotations that schedulers read are erased as well; cycles that went by them
            will then be decided otherwise in a replay.
    """

    namespace: str
    name: str
    uids: tuple[str, ...]
    pseudonym: str
    all_labels: bool = False
    _path: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _word: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        namespace, name = re.escape(self.namespace), re.escape(self.name)
        end = r"(?![\w-]|\.\w)"
        # `default/x`, `pod/default/x` and `Pod/default/x`, but not `Job.batch/default/x`.
        path = rf"(?<![\w./-])((?:[Pp]od/)?{namespace}/){name}{end}"
        object.__setattr__(self, "_path", re.compile(path))
        object.__setattr__(self, "_word", re.compile(rf"(?<![\w.-]){name}{end}"))

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def redacted(self, event: Event) -> Event | None:
        """Return an event without the pods' personal data, its hash as it was; None where it has none.

        Raises:
            msgspec.DecodeError: its body is no JSON.
        """
        own = event.stream.startswith("pod/") and event.stream.removeprefix("pod/") in self.uids
        document = msgspec.json.decode(event.body)
        body = self.document(document, own=own)
        subject = event.subject
        if own and subject == self.subject:
            subject = f"{self.namespace}/{self.pseudonym}"
        if body == document and subject == event.subject:
            return None
        return msgspec.structs.replace(event, subject=subject, body=msgspec.Raw(msgspec.json.encode(body)))

    def document(self, document: Any, *, own: bool = False) -> Any:
        """Return a document without the pods' personal data.

        Args:
            document: an event's body, or a state as one.
            own: whether it is about one of the pods.
        """
        if isinstance(document, dict):
            return self._object(document, own=own)
        if isinstance(document, list):
            return [self.document(item, own=own) for item in document]
        return self._path.sub(rf"\g<1>{self.pseudonym}", document) if isinstance(document, str) else document

    def names(self, text: str) -> bool:
        """Tell whether the name remains in a text, as a word of its own."""
        return self._word.search(text) is not None

    def _object(self, document: Document, *, own: bool) -> Document:
        about = document.get("uid") in self.uids
        redacted: Document = {}
        for key, value in document.items():
            if about and key in _NAMES and value == self.name:
                redacted[key] = self.pseudonym
            elif (own or about) and key in ("labels", "annotations") and isinstance(value, dict):
                redacted[key] = self._labels(value)
            elif own and key in _TEXTS and isinstance(value, str):
                redacted[key] = self._word.sub(self.pseudonym, value)
            else:
                redacted[self.document(key)] = self.document(value, own=own)
        return redacted

    def _labels(self, labels: Document) -> Document:
        kept: Callable[[str], bool] = (lambda _: False) if self.all_labels else is_of_schedulers
        return {
            self._word.sub(ERASED, key): self._word.sub(self.pseudonym, value)
            if kept(key) and isinstance(value, str)
            else ERASED
            for key, value in labels.items()
        }


def is_of_schedulers(key: str) -> bool:
    """Tell whether a label or annotation is one that schedulers read, and not one that people choose."""
    # One label of the scheduler-plugins is a domain and nothing else.
    domain = key.partition("/")[0]
    known = any(domain == one or domain.endswith(f".{one}") for one in _SCHEDULERS)
    return key in _SCHEDULERS_WORDS or (known and domain != _PEOPLES)

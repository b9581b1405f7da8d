"""Differences between two moments as data, for `kai diff` and the API."""

from kaicore.analysis.inquiry.answers import Answer

#: What is compared, in the order of answers.
KINDS = ("nodes", "topology", "queues", "groups", "pods", "zones")


class FieldChange(Answer, frozen=True, kw_only=True):
    """A field that is different; empty where it was not, or is not any more."""

    field: str
    before: str
    after: str


class RowChange(Answer, frozen=True, kw_only=True):
    """A thing that is new, gone or changed.

    Attributes:
        kind: one of `KINDS`.
        change: added, removed or changed.
        fields: that are different; of what is new or gone all that say something.
    """

    kind: str
    name: str
    change: str
    fields: list[FieldChange]


class DiffSide(Answer, frozen=True, kw_only=True):
    """One of the two moments."""

    position: int
    recorded_at: str


class DiffAnswer(Answer, frozen=True, kw_only=True):
    """What is different at a later moment from what it was at an earlier one.

    Attributes:
        counts: changes by kind and by what they are; kinds without any are left out.
        changes: by kind, in each by name.
    """

    cluster: str
    before: DiffSide
    after: DiffSide
    counts: dict[str, dict[str, int]]
    changes: list[RowChange]


class DiffQuestion(Answer, frozen=True, kw_only=True):
    """What is to be compared; what is not named lets all through.

    Attributes:
        kind: one of `KINDS`.
        namespace, node, queue: only what is there before or after; kinds that have no such thing are left out.
    """

    kind: str = ""
    namespace: str = ""
    node: str = ""
    queue: str = ""

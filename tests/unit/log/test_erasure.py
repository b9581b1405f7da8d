"""A pod's pseudonym after the erasure of its name, and the personal data in an event."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kaicore.ledger.log.chain import GENESIS, continues, event_hash, mark_of, marked
from kaicore.rules.events.envelope import Event, derived_id
from kaicore.rules.events.erasure import Erasure, pseudonym

from tests.given.recorded import read_log, recorded_logs

_NAME = st.builds(
    lambda begin, end: f"{begin}-{end}" if end else begin,
    st.text("abc", min_size=1, max_size=3),
    st.text("abc01", max_size=2),
)
NAMES = st.lists(_NAME, unique=True, min_size=1, max_size=6)


@given(NAMES)
def test_a_pseudonym_has_the_place_of_its_name_whatever_was_erased_before(names: list[str]) -> None:
    order = sorted(names)
    erased = list(order)
    # One after the other, each between neighbours of which some are erased; neighbours that are, in order.
    for number, name in enumerate(order):
        others = sorted(erased[:number] + erased[number + 1 :])
        before = max((other for other in others if other < name), default="")
        after = min((other for other in others if other > name), default="")
        erased[number] = pseudonym(f"uid{number}", before=before, after=after)
        assert erased == sorted(erased)
        assert before < erased[number]
        assert not after or erased[number] < after


def event(payload: dict[str, object], *, stream: str = "cycle/default", subject: str = "") -> Event:
    body = msgspec.Raw(msgspec.json.encode(payload))
    made = Event("c", 7, stream, 1, "PodBound", 1, derived_id("x"), "a", 1, 2, body, b"", subject)
    return msgspec.structs.replace(made, hash=event_hash(GENESIS, made))


ERASURE = Erasure("lab", "alice", ("u1",), "erased-u1")


def redacted(payload: dict[str, object], **fields: str) -> object:
    changed = ERASURE.redacted(event(payload, **fields))
    return None if changed is None else msgspec.json.decode(changed.body)


def test_a_name_is_replaced_beside_its_uid_and_as_a_path_and_nowhere_else() -> None:
    assert redacted({"pods": [{"uid": "u1", "name": "alice"}, {"uid": "u2", "name": "alice"}]}) == {
        "pods": [{"uid": "u1", "name": "erased-u1"}, {"uid": "u2", "name": "alice"}]
    }
    text = (
        "lab/alice, pod/lab/alice and Pod/lab/alice hold it; Job.batch/lab/alice, lab/alice-2 and other/alice do not."
    )
    assert redacted({"example": text}) == {
        "example": "lab/erased-u1, pod/lab/erased-u1 and Pod/lab/erased-u1 hold it; "
        "Job.batch/lab/alice, lab/alice-2 and other/alice do not."
    }
    assert redacted({"name": "alice", "namespace": "lab"}) is None


def test_of_its_own_events_subject_labels_and_messages_are_redacted() -> None:
    pod = {
        "uid": "u1",
        "name": "alice",
        "node_name": "alice",
        "labels": {"team": "blue", "kai.scheduler/queue": "q", "app.kubernetes.io/name": "x", "alice": "1"},
        "message": 'pod "alice" does not fit, malice does',
    }
    own = {"stream": "pod/u1", "subject": "lab/alice"}
    changed = ERASURE.redacted(event({"pod": pod}, **own))
    assert changed is not None
    assert changed.subject == "lab/erased-u1"
    assert msgspec.json.decode(changed.body)["pod"] == {
        "uid": "u1",
        "name": "erased-u1",
        "node_name": "alice",
        "labels": {
            "team": "erased",
            "kai.scheduler/queue": "q",
            "app.kubernetes.io/name": "erased",
            "erased": "erased",
        },
        "message": 'pod "erased-u1" does not fit, malice does',
    }
    every = msgspec.structs.replace(event({"pod": pod}, **own))
    both = Erasure("lab", "alice", ("u1",), "erased-u1", all_labels=True).redacted(every)
    assert both is not None
    assert set(msgspec.json.decode(both.body)["pod"]["labels"].values()) == {"erased"}


def test_a_mark_tells_what_is_left_and_survives_another_erasure() -> None:
    first = read_log(recorded_logs()[0])[0]
    for body in (first, event({})):
        changed = marked(GENESIS, msgspec.structs.replace(body, subject="other"))
        assert continues(GENESIS, changed)
        assert not continues(b"x" * 32, changed)
        assert not continues(GENESIS, msgspec.structs.replace(changed, actor="mallory"))
        again = marked(GENESIS, msgspec.structs.replace(changed, subject="third"))
        assert continues(GENESIS, again)
        assert mark_of(again) != mark_of(changed)
        assert len(bytes(again.body)) == len(bytes(changed.body))

"""A reading that comes twice lasts; a report that is sent twice is one reading."""

import pytest
from kai_ingest.ingest import EqualReads


@pytest.mark.parametrize(
    ("contents", "times", "again"),
    [
        ((b"half",) * 4, (1, 1, 2, 3), [False, False, True, True]),
        ((b"cpus", b"more", b"cpus", b"cpus"), (0, 1, 2, 3), [False, False, False, True]),
    ],
    ids=["a report that is sent twice is one read", "other contents begin anew"],
)
def test_the_next_look_at_the_same_is_the_second(
    contents: tuple[bytes, ...], times: tuple[int, ...], again: list[bool]
) -> None:
    reads = EqualReads()
    assert [reads.again("a", content, at=at) for content, at in zip(contents, times, strict=True)] == again


def test_a_pod_that_is_settled_is_forgotten_and_others_are_not() -> None:
    reads = EqualReads()
    for uid in "ab":
        reads.again(uid, b"half", at=1)
    reads.settled("a")
    assert (reads.again("a", b"half", at=2), reads.again("b", b"half", at=2)) == (False, True)


def test_of_too_many_pods_the_one_read_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kai_ingest.ingest._KEPT", 2)
    reads = EqualReads()
    for at, uid in enumerate("abc"):
        reads.again(uid, b"half", at=at)
    assert [reads.again(uid, b"half", at=9) for uid in "cba"] == [True, True, False]

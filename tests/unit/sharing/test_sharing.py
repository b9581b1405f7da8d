"""Owners of groups, and members that count as live."""

from collections import Counter

from kaicore.rules.model.replicas import Liveness, Sighting, owner

KEYS = [f"team/group-{number}" for number in range(4000)]


def test_only_a_lost_members_keys_move_and_all_share_them() -> None:
    members = ("a", "b", "c", "d")
    before = {key: owner(key, members) for key in KEYS}
    after = {key: owner(key, ("d", "b", "a")) for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {before[key] for key in moved} == {"c"}
    for shares in (Counter(before.values()), Counter(after[key] for key in moved)):
        assert max(shares.values()) < 1.25 * min(shares.values())


def test_a_key_without_members_has_no_owner() -> None:
    assert owner("team/group", ()) == ""
    assert owner("team/group", ("a",)) == "a"


def test_a_member_counts_from_when_its_record_was_seen_to_change() -> None:
    liveness = Liveness()
    liveness.observe([Sighting("a", 7, 3.0), Sighting("b", 8, 5.0)], now=100.0)
    liveness.observe([Sighting("a", 7, 3.0)], now=102.0)
    assert liveness.live(now=102.9) == ("a", "b")
    assert liveness.live(now=103.0) == ("b",)
    liveness.observe([Sighting("a", 9, 3.0), Sighting("b", 10, 0)], now=104.0)
    assert liveness.live(now=104.0) == ("a",)

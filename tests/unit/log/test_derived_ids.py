"""Ids of events are those of RFC 9562, version 5."""

from itertools import islice
from uuid import RFC_4122, UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.events.envelope import derived_id, numbered_ids


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_derived_id_is_the_uuid_of_version_5_of_its_parts(parts: list[str]) -> None:
    space = UUID("6f0c7c1e-9a0b-5e57-8f7e-1d6b0c7a5d11")
    assert derived_id(*parts) == uuid5(space, "\x1f".join(parts))


def test_numbered_ids_differ_in_their_first_eight_bytes_and_stay_of_version_5() -> None:
    first = derived_id("cycle")
    ids = [*islice(numbered_ids(first), 1_000)]
    assert len({one.hex[:16] for one in (first, *ids)}) == 1_001
    assert {(one.version, one.variant, one.hex[12:]) for one in ids} == {(5, RFC_4122, first.hex[12:])}


def test_numbered_ids_count_on_from_the_first_and_over_its_highest_number() -> None:
    for first in (derived_id("cycle"), UUID(int=derived_id("cycle").int | (2**48 - 70) << 80)):
        ids = [*islice(numbered_ids(first), 200)]
        assert [one.int for one in ids] == [(first.int + (number << 80)) % 2**128 for number in range(1, 201)]

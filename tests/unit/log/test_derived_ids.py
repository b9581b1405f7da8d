"""Ids of events are those of RFC 9562, version 5."""

from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.events.envelope import derived_id


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_derived_id_is_the_uuid_of_version_5_of_its_parts(parts: list[str]) -> None:
    space = UUID("6f0c7c1e-9a0b-5e57-8f7e-1d6b0c7a5d11")
    assert derived_id(*parts) == uuid5(space, "\x1f".join(parts))

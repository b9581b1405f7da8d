"""Durations as Go writes them."""

import pytest
from kaicore.errors import InvalidObject
from kaicore.rules.model.quantity import parse_duration


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("60s", 60_000_000),
        ("1h30m", 5_400_000_000),
        ("500ms", 500_000),
        ("1.5s", 1_500_000),
        ("-1s", -1_000_000),
        ("0", 0),
        ("1m0.5s", 60_500_000),
        ("1500ns", 1),
    ],
)
def test_duration_is_read_in_microseconds(text: str, us: int) -> None:
    assert parse_duration(text, subject="x", field="y") == us


@pytest.mark.parametrize("text", ["", "60", "s", "1 s", "1d", "--1s", "1h-1m", "9999999999h", "1" * 200 + "s"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidObject, match="x: y: is"):
        parse_duration(text, subject="x", field="y")

"""The form of events on the wire."""

import pytest
from kaicore.errors import CorruptLog, InvalidObject
from kaicore.ledger.bus import Message
from kaicore.ledger.bus.wire import from_message, message_hash, stream_name, subject_prefix, to_message
from kaicore.rules.events.codec import encode_event
from kaicore.rules.events.envelope import Event, traceparent

from tests.given.doubles.unreliable import UnreliableLog, append


@pytest.fixture
async def event() -> Event:
    log = UnreliableLog()
    await append(log, "c", 1)
    (recorded,) = await log.read("c")
    return recorded


def test_an_event_travels_as_it_is(event: Event) -> None:
    message = to_message(event, max_data=10_000)
    assert message == Message(1, "PodDeleted", encode_event(event), traceparent(event))
    assert from_message(message) == event
    assert message_hash(message) == event.hash


def test_an_event_that_is_too_large_travels_as_its_hash(event: Event) -> None:
    size = len(encode_event(event))
    assert from_message(to_message(event, max_data=size)) == event
    message = to_message(event, max_data=size - 1)
    assert message == Message(1, "PodDeleted", b"#" + event.hash, traceparent(event))
    assert from_message(message) is None
    assert message_hash(message) == event.hash


@pytest.mark.parametrize("data", [b"", b"nonsense", b"{}", b'{"position":1}', b"#", b"#short"])
def test_anything_else_stands_for_no_event(data: bytes) -> None:
    with pytest.raises(CorruptLog, match="bus message"):
        message_hash(Message(7, "PodDeleted", data))


def test_cluster_has_its_names_of_stream_and_subject() -> None:
    assert stream_name("gpu-1") == "kai-gpu-1"
    assert subject_prefix("gpu-1") == "kai.gpu-1."
    with pytest.raises(InvalidObject, match=r"cluster: name: must be 1 to 63 of .*: 'gpu\.1'"):
        stream_name("gpu.1")

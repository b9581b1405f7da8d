"""The client of NATS: what arrives, cut at any place, and what is sent."""

import random

import pytest
from kaicore.ledger.bus.client import Incoming, NatsClient, Outgoing
from nats.errors import BadSubjectError, MaxPayloadError

HEADERS = b"NATS/1.0\r\ntraceparent: 00-aa-bb-01\r\nNats-Expected-Last-Sequence: 6\r\n\r\n"
STATUS = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 3\r\n\r\n"


def wire(number: int, data: bytes, *, headers: bytes = b"", reply: str = "") -> bytes:
    to = f"kai.c1.PodBound {number}{f' {reply}' if reply else ''}"
    if not headers:
        return f"MSG {to} {len(data)}\r\n".encode() + data + b"\r\n"
    return f"HMSG {to} {len(headers)} {len(headers) + len(data)}\r\n".encode() + headers + data + b"\r\n"


class Client(NatsClient):
    """Remembers what came for inbox 7, and what came for nats-py."""

    def __init__(self) -> None:
        super().__init__(None)
        self.taken: list[Incoming] = []
        self.others: list[object] = []
        self.inboxes[b"7"] = self.taken.append

    async def _process_ping(self) -> None:
        self.others.append("ping")

    async def _process_err(self, err_msg: str) -> None:
        self.others.append(err_msg)


async def test_messages_for_an_inbox_are_the_same_however_they_are_cut() -> None:
    sent = [
        wire(7, b"one", headers=HEADERS, reply="$JS.ACK.1"),
        b"PING\r\n",
        wire(7, b""),
        wire(8, b"for nobody", headers=HEADERS),
        wire(7, b"two\r\nMSG x 7 3\r\nabc\r\n", reply="r"),
        b"-ERR 'Slow Consumer'\r\n",
        wire(7, b"", headers=STATUS),
        *(wire(7, b"x" * size, headers=HEADERS) for size in (0, 1, 5000)),
    ]
    text = b"".join(sent)
    rng = random.Random(7)
    seen = []
    for most in (1, 3, 40, 1000, len(text)):
        client, at = Client(), 0
        while at < len(text):
            size = rng.randint(1, most)
            await client._ps.parse(text[at : at + size])
            at += size
        assert client.others == ["ping", "'slow consumer'"]
        seen.append(client.taken)
    assert seen[0][:2] == [
        Incoming(b"kai.c1.PodBound", b"$JS.ACK.1", HEADERS, b"one"),
        Incoming(b"kai.c1.PodBound", b"", b"", b""),
    ]
    assert [len(one.data) for one in seen[0]] == [3, 0, 21, 0, 0, 1, 5000]
    assert all(taken == seen[0] for taken in seen)


def test_headers_and_statuses_are_read() -> None:
    message = Incoming(b"s", b"", HEADERS, b"")
    assert (message.status, message.header("traceparent"), message.header("other")) == ("", "00-aa-bb-01", "")
    status = Incoming(b"s", b"", STATUS, b"")
    assert (status.status, status.header("Nats-Pending-Messages")) == ("409 Message Size Exceeds MaxBytes", "3")
    assert Incoming(b"s", b"", b"NATS/1.0 503\r\n\r\n", b"").status == "503"


def test_messages_are_sent_as_the_protocol_has_them() -> None:
    client = NatsClient(None)
    assert b"".join(client._pieces(Outgoing("a.b", b"data"), "in")) == b"PUB a.b in 4\r\ndata\r\n"
    made = b"".join(client._pieces(Outgoing("a.b", b"data", {"K": "v"}), ""))
    assert made == b"HPUB a.b 18 22\r\nNATS/1.0\r\nK: v\r\n\r\ndata\r\n"


@pytest.mark.parametrize(
    ("subject", "size", "error"),
    [("a b", 1, BadSubjectError), ("a\r\nPUB b", 1, BadSubjectError), ("a", 2 << 20, MaxPayloadError)],
)
def test_message_that_the_server_would_not_take_is_refused(subject: str, size: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        NatsClient(None)._pieces(Outgoing(subject, b"x" * size), "reply")

"""Questions about history."""

import msgspec


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a question."""


class PatchText(_Part, frozen=True, kw_only=True):
    """A patch as it is written (`kaicore.analysis.history.patch`), and what it is called where it says nothing."""

    name: str
    text: str


class HistoryQuestion(_Part, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        since: the window's first event (`kaicore.analysis.inquiry.ranges`); empty for the log's first.
        until: its last event; empty for the log's last.
        settings: `KEY=VALUE`, of every alternative.
        patches: one for each alternative; without any, `settings` are the only one.
    """

    since: str = msgspec.field(name="from", default="")
    until: str = msgspec.field(name="to", default="")
    settings: tuple[str, ...] = ()
    patches: tuple[PatchText, ...] = ()

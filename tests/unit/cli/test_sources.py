"""Questions that go to several clusters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kai_cli.sources import answers
from kai_cli.sources.answers import ask_each
from kai_cli.sources.source import ANY_ANSWER
from kaicore.errors import UnknownSubject


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        ({"a": "no pod b; did you mean 'd'?", "c": "no pod b"}, "no pod b; did you mean 'd'?"),
        ({"a": "no pod b", "c": "no pod b"}, "no pod b"),
        ({"a": "cluster a: no pod b", "c": "cluster c: no pod b"}, "cluster a: no pod b; cluster c: no pod b"),
        ({}, "the log is empty"),
    ],
)
async def test_what_no_cluster_has_is_reported_of_all_of_them(
    unknown: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[tuple[None, list[str]]]:
        yield None, list(unknown)

    async def ask(_: object, cluster: str) -> None:
        raise UnknownSubject(unknown[cluster])

    monkeypatch.setattr(answers, "open_answers", opened)
    with pytest.raises(UnknownSubject) as failed:
        await ask_each(ANY_ANSWER, "", ask)
    assert str(failed.value) == said

"""Errors about an unusable url of Postgres contain nothing of its password."""

import pytest
from kai_cli.running.preflight import check_database
from kaicore.errors import KaiError
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog

URLS = (
    "postgres+x://kai:c4nary@127.0.0.1/kai",
    "postgresql://kai:p@c4nary@127.0.0.1:1/kai",
    "postgresql://kai:p/c4nary@127.0.0.1:1/kai",
    "postgresql://kai:c4nary/p@127.0.0.1:1/kai",
    "postgresql://kai:p?c4nary@127.0.0.1:1/kai",
    "postgresql://kai:c4nary%zz@127.0.0.1:1/kai",
    "postgresql://kai:c4nary@127.0.0.1:port/kai",
    "postgresql://kai@127.0.0.1:1/kai?password=%zzc4nary",
    'postgresql://kai:p"@c4nary@127.0.0.1:1/kai',
    "host=127.0.0.1 port=1 password=p c4nary",
    "host=127.0.0.1 port=1 password='p' c4nary",
)


@pytest.mark.parametrize("url", URLS)
async def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    said = []
    try:
        async with await PostgresLog.open(url) as log:
            await log.head("c")
    except KaiError as error:
        said.append(error)
    for connect in (upgrade, check_database):
        with pytest.raises(KaiError) as refused:
            connect(url)
        said.append(refused.value)
    assert len(said) == 3
    assert [error for error in said if "c4nary" in str(error) or error.__cause__ is not None] == []


def test_what_is_wrong_is_still_named() -> None:
    with pytest.raises(KaiError, match='port "port" is no number from 1 to 65535'):
        upgrade("postgresql://kai:x@127.0.0.1:port/kai")
    with pytest.raises(KaiError, match='"bogus"'):
        upgrade("postgresql://kai:x@127.0.0.1/kai?bogus=1")

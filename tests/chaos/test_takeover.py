"""Of two processes of a service one is killed, frozen, asked to stop or cut off, and the other one does the work."""

import os

import pytest

from tests.measured.bench.scale.instances import Fault
from tests.measured.bench.scale.services import Servers
from tests.measured.bench.scale.takeover import MEASURED
from tests.measured.bench.scale.trials import Size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes minutes: make chaos"),
]


@pytest.mark.parametrize("service", MEASURED)
async def test_a_second_instance_does_the_work_of_one_that_fails(
    service: str, superuser_url: str, nats_url: str, cluster_name: str
) -> None:
    servers = Servers(database_url=superuser_url, nats_url=nats_url)
    seconds = await MEASURED[service](servers, cluster_name, Size(faults=1))
    assert {fault: len(each) for fault, each in seconds.items()} == dict.fromkeys(Fault, 1)

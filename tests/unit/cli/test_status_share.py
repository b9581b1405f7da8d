"""The words of `kai status` about work that several share."""

import pytest
from kai_cli.status import share_of


@pytest.mark.parametrize(
    ("metrics", "share"),
    [
        ('kai_pending_pods{shard="default"} 3.0\n', ""),
        ('kai_binder_live{cluster="a"} 1.0\n', ""),
        ('kai_binder_live{cluster="a"} 3.0\n', "of 3 binders"),
        (
            'kai_pending_pods{shard="default/r0"} 7.0\nkai_shard_replicas{shard="default/r0"} 2.0\n',
            "default/r0, of 2 replicas; its last cycle left 7 pods",
        ),
    ],
)
def test_a_service_tells_its_part_of_the_work(metrics: str, share: str) -> None:
    assert share_of(metrics) == share

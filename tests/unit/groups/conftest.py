"""A cluster to which pods and objects are applied."""

import pytest

from tests.given.work.groups import World


@pytest.fixture
def world() -> World:
    return World()

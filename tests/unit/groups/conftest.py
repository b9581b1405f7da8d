"""A cluster to which pods and objects are applied."""

import pytest

from tests.groups import World


@pytest.fixture
def world() -> World:
    return World()

"""Parts of objects that make no sense: as errors, for tests that look for just them."""

from kaicore.errors import InvalidObject


def refuse(error: InvalidObject) -> None:
    """Raise what would be left out of an object."""
    raise error

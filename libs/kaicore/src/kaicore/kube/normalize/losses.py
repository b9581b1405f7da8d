"""Losses: invalid parts of an object that is otherwise valid. They are left out and reported.

Each loss affects only its own part. The purpose of an object, such as the size of a gang, is not such a part: without
it the whole object is refused (`InvalidObject`).
"""

from collections.abc import Callable

from kaicore.errors import InvalidObject

#: Is called with each part of an object that was left out: object, field, value and what is wrong with it.
Lost = Callable[[InvalidObject], None]


def unheard(_: InvalidObject) -> None:
    """Say nothing: for those who know it already."""

"""What of an object makes no sense while the rest does: it is left out, and said.

A part that is lost costs no more than itself. What an object is for, such as the size of a gang, is no part of it:
without that the whole object is refused (`InvalidObject`).
"""

from collections.abc import Callable

from kaicore.errors import InvalidObject

#: Is told of each part of an object that was left out: object, field, value and what is wrong with it.
Lost = Callable[[InvalidObject], None]


def unheard(_: InvalidObject) -> None:
    """Say nothing: for those who have been told before."""

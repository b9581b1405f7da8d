"""Reasons of all kinds in one union, as cycles record them. Answers, conditions and events put them into words.

The tag of the union is `code`. Each class of the modules that has none below it is a member. A new one raises the
schema version of the events that carry reasons, because older programs cannot read it.
"""

from typing import TYPE_CHECKING, TypeAlias, Union

from kaicore.rules.events.reasons import group, making_room, node, numa, queue
from kaicore.rules.events.reasons.base import CodedReason

if TYPE_CHECKING:
    # mypy compares each of 90 members with all others where one is looked for: a tenth of its time.
    Reason: TypeAlias = CodedReason
else:
    Reason = Union[  # noqa: UP007 - of a list
        tuple(
            one
            for module in (node, numa, group, queue, making_room)
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, CodedReason) and not one.__subclasses__()
        )
    ]

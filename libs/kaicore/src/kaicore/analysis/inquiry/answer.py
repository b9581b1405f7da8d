"""What all answers have in common."""

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that is answered."""

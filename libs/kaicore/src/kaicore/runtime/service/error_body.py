"""The one shape in which our HTTP servers say what is wrong."""

import msgspec


def error_body(why: str) -> bytes:
    """Return `{"error": why}`, encoded."""
    return msgspec.json.encode({"error": why})

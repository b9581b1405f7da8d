"""The one form of error bodies in our HTTP servers."""

import msgspec


def error_body(why: str) -> bytes:
    """Return `{"error": why}`, encoded."""
    return msgspec.json.encode({"error": why})

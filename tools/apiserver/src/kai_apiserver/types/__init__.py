"""Reading objects as built-in types: fields that are always written out, and how lists merge."""

from kai_apiserver.types.decoding import Mismatch, decode

__all__ = ["Mismatch", "decode"]

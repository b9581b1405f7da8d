"""How objects are read as one of the built-in types: what is always written out, and how lists merge."""

from kai_apiserver.types.decoding import Mismatch, decode

__all__ = ["Mismatch", "decode"]

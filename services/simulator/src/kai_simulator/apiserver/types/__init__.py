"""What the server knows of the built-in types: their fields, what is always written out, and how lists merge."""

from kai_simulator.apiserver.types.builtin import TYPES, BuiltinType
from kai_simulator.apiserver.types.decoding import Mismatch, decode

__all__ = ["TYPES", "BuiltinType", "Mismatch", "decode"]

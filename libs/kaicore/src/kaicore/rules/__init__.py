"""The rules of every decision: plain data and pure functions, without I/O, clock or random numbers."""

"""Everything that decides: plain data and pure functions, no I/O, no clock, no random number."""

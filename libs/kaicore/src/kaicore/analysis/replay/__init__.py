"""The log read again: moments of it, the state at each, replays, exports and the audit of the whole log."""

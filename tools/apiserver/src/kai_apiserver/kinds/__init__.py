"""Rules of each kind: defaults, admission, validation. `kinds.table` maps kinds to their rules."""

"""What is particular to a kind: defaults, admission, validation. `kinds.table` says which kind has which rules."""

"""The library of kai-ledger: every rule, no service."""

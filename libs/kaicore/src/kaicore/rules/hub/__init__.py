"""The hub: which cluster each dispatch is given to, on what lease, and when it may be given to another."""

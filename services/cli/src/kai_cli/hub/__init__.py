"""The hub's clusters and dispatches: `kai cluster`, `kai submit`, `kai withdraw`."""

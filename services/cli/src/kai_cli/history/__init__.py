"""Questions about the log itself: `kai replay`, `kai audit`, `kai export`."""

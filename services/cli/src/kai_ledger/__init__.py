"""For notebooks and scripts."""

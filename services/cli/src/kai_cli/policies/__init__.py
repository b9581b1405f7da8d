"""Policies of one's own: listed, checked and tried (`kai policy`)."""

"""Sharing of work among members: their liveness, and the owner of each key."""

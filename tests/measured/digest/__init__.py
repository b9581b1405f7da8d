"""The digest of decisions: the same before and after a change that is meant to change no decision."""

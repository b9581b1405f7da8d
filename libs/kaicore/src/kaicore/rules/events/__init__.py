"""Events: their payloads, their encoding, and the reading of old ones."""

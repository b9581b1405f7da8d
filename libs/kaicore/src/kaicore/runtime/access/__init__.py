"""Who asks over HTTP, and what he may see: keys and tokens, scopes, browsers' sessions (docs/how-to/api.md)."""

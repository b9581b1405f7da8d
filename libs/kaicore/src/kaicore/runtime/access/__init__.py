"""Access over HTTP: identification of callers, and their rights. Keys and tokens, scopes, browsers' sessions
(docs/how-to/api.md).
"""

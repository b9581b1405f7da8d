"""Access control of the API: it decides what each caller may see (callers: `kaicore.runtime.access`)."""

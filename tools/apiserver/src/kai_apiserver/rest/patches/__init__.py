"""The four kinds of patch: JSON patch, JSON merge patch, strategic merge patch, server-side apply."""

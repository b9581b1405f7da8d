"""The image of all services, built without a container engine: docs/how-to/image.md, decision 0431."""

"""Indexes: everything that follows from the pods' entries, kept up to date as these change."""

"""Faces of people who were enrolled, encrypted on disk and searched in memory. Nothing here knows torch."""

"""Datasets of people for face recognition, as they are distributed: one layout each, with ``catalogue.py`` the list."""

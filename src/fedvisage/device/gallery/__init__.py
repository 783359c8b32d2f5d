"""Galleries of enrolled people, encrypted on disk and searched in memory, without torch."""

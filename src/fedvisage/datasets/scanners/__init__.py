"""Scanners: one module a dataset, which says what its files are called and what their names mean; no pixels here."""

"""Importers: one module a dataset layout, each writing a prepared set."""

"""A study: a grid of recipes over users, rows and seeds, run cell by cell into one table."""

from fedvisage.studies.conduct import conduct
from fedvisage.studies.file import Study, read
from fedvisage.studies.grid import Cell, cells_of

__all__ = ["Cell", "Study", "cells_of", "conduct", "read"]

"""A study: a grid of recipes over users, rows and seeds, run cell by cell into one table."""

from fedvisage.studies.conduct import conduct
from fedvisage.studies.grid import Cell, cells_of
from fedvisage.studies.study import Study, read

__all__ = ["Cell", "Study", "cells_of", "conduct", "read"]

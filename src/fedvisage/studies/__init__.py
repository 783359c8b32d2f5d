"""Studies: grids of recipes over targets, rows and seeds, the demo, and shipped recipes."""

from fedvisage.studies.conduct import conduct
from fedvisage.studies.grid import Cell, cells_of
from fedvisage.studies.study import Study, read

__all__ = ["Cell", "Study", "cells_of", "conduct", "read"]

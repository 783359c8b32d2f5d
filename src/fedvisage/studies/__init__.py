"""Studies: grids of recipes over targets, rows and seeds, the demo, and shipped recipes."""

from fedvisage.studies.conduct import run_study
from fedvisage.studies.grid import Cell, cells_of
from fedvisage.studies.study import Study, load_study

__all__ = ["Cell", "Study", "cells_of", "load_study", "run_study"]

"""Imports any folder of images and videos: see ``datasets.scanners.folder`` for the layout."""

from functools import partial

from fedvisage.datasets.importers.pipeline import import_items
from fedvisage.datasets.scanners.folder import SCANNER
from fedvisage.workers.spread import Progress

__all__ = ["Progress", "import_folder"]

import_folder = partial(import_items, SCANNER)
"""Import a folder into a prepared set; what it takes is what ``importers.pipeline.import_items`` takes."""

"""Where rendered sets and pre-trained models are kept for the next run, unless somebody says otherwise."""

import os
from pathlib import Path

CACHE = Path(os.environ.get("FEDVISAGE_CACHE", "~/.cache/fedvisage")).expanduser()

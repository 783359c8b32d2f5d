"""Where rendered sets and pre-trained models are kept for the next run, unless somebody says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory that FEDVISAGE_CACHE names, or our own where the user keeps what can be made again.

    A relative path in XDG_CACHE_HOME does not count, as its specification says.
    """
    if named := environment.get("FEDVISAGE_CACHE"):
        return Path(named).expanduser()
    home = Path(environment.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.cache").expanduser()) / "fedvisage"


CACHE = cache_directory(os.environ)

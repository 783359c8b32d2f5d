"""Fast imports of large libraries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection inside the context, which imports large libraries.

    Loading torch creates several hundred thousand objects, and the collector would visit them again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

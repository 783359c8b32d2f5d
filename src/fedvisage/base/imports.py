"""Fast imports of large libraries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection(*, freeze: bool = False) -> Iterator[None]:
    """Pause garbage collection inside the context, which imports large libraries.

    Loading torch creates several hundred thousand objects, and the collector would visit them again and again. With
    ``freeze``, it never visits the objects that exist at the end; this is for our own processes, because garbage in
    cycles among them is never freed.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if collects:
            gc.enable()

"""From a data entry of a recipe to the directory of a prepared set.

An entry is such a directory, or a line ``synth: O subjects=20`` that says what to render. Rendered sets are kept in
a cache under the digest of everything that decides their pixels, so a changed renderer never finds old images.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from fedvisage.data.manifest import SET
from fedvisage.errors import UserError

SYNTHETIC = "synth:"
_STEPS = 10


def resolve(entry: str, cache: Path, *, workers: int = 1, say: Callable[[str], None] | None = None) -> Path:
    """Return the directory of the prepared set that an entry names, rendering it into the cache if need be."""
    entry = entry.strip()
    if not entry.startswith(SYNTHETIC):
        return Path(entry).expanduser()
    # Here, because rendering needs libraries that reading a directory does not.
    from fedvisage.faces.synthetic.sets import parse_synthesis, synthesise

    spec = parse_synthesis(entry.removeprefix(SYNTHETIC).strip())
    path = cache / f"synth-{spec.domain}-{hashlib.sha256(spec.digest_text.encode()).hexdigest()[:12]}"
    if _complete(path):
        return path
    progress = in_steps(f"rendering {spec.domain}", say) if say else None
    try:
        synthesise(spec, path, workers=workers, progress=progress)
    except UserError:
        # Another process may have finished the same set meanwhile; its pixels are the same.
        if not _complete(path):
            raise
    return path


def _complete(path: Path) -> bool:
    """Tell whether a set is there: sets appear under their name only when they are whole."""
    return (path / SET).is_file()


def in_steps(what: str, say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a progress function that says how far the work is, about every tenth of it."""
    said = -1

    def progress(done: int, total: int) -> None:
        nonlocal said
        step = done * _STEPS // max(total, 1)
        if step > said:
            said = step
            say(f"{what}: {done} of {total}")

    return progress

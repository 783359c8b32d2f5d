"""Small copies of datasets in which one place of a list is wrong."""

from pathlib import Path

from fedvisage.datasets.catalogue import write_small_copy


def spoilt(kind: str, root: Path, file: str, old: str, new: str) -> Path:
    """Write a small copy below a folder, with other words at the first place where they stand in one of its files."""
    write_small_copy(kind, root)
    content = (root / file).read_bytes().decode()
    assert old in content
    (root / file).write_bytes(content.replace(old, new, 1).encode())
    return root

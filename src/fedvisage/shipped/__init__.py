"""The recipes and studies that come with the package: found by name, listed, and copied to be changed.

``recipes`` here is a link to the directory at the repository's root; a wheel has the files themselves in its place.
"""

from fedvisage.shipped.names import locate, names

__all__ = ["locate", "names"]

"""Rendered faces: a parametric head, the camera that sees it and the attacks that imitate it."""

"""Finished models as ONNX graphs that need no torch, in a directory with all that a device must know of them."""

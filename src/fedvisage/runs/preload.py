"""The modules of worker processes. The fork server imports this module once, before it starts any of them."""

from fedvisage.base.imports import pause_garbage_collection

with pause_garbage_collection(freeze=True):
    import timm
    import torch._dynamo

    import fedvisage.runs.workers

# Networks need timm, and optimizers torch._dynamo.
__all__ = ["fedvisage", "timm", "torch"]

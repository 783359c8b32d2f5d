"""The modules of worker processes. The fork server imports this module once, before it starts any of them."""

from contextlib import suppress
from importlib import import_module

from fedvisage.base.imports import pause_garbage_collection

MODULES = ("fedvisage.runs.workers", "timm", "torch._dynamo")
"""The workers' jobs, and the slow modules that networks and optimizers import."""

with pause_garbage_collection(freeze=True):
    for name in MODULES:
        with suppress(ImportError):  # the job that needs the module reports the error
            import_module(name)

"""The modules of worker processes. The fork server imports this module once, before it starts any of them."""

from contextlib import suppress

from fedvisage.base.imports import pause_garbage_collection

with pause_garbage_collection(freeze=True), suppress(ImportError):  # the job that needs a module reports the error
    import fedvisage.runs.workers  # noqa: F401

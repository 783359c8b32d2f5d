"""Sources of prepared sets: importers of real images, rendered faces, and ``synth:`` lines."""

"""Where prepared sets come from: importers of real images, rendered faces, and ``synth:`` lines."""

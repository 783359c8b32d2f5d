"""The models that algorithms train: one file each, a network with what its task asks of it."""

"""The algorithms that train any model: one file each."""

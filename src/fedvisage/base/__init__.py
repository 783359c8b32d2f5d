"""Code that every other package may import: errors, files, random streams, progress, processes and extensions."""

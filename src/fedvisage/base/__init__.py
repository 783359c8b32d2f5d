"""Code that everything else may use: errors, files, random streams, progress, processes and extensions."""

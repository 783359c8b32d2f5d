"""Everything that a finished run directory can be drawn into: figures, tables, one page, comparisons."""

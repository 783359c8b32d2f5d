"""Reports of finished runs: figures, tables, HTML pages, comparisons and trackers."""

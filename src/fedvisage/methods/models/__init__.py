"""Models that algorithms train, one per file: a network with its loss and its predictions."""

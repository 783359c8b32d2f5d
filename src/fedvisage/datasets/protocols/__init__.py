"""Published protocols: the training and evaluation data of each, one family per file."""

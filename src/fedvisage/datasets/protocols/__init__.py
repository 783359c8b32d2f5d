"""Published protocols: the training and test data of each, one family per file."""

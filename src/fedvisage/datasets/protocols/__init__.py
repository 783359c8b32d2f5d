"""Published protocols: the training and evaluation data of each: within one dataset, and across datasets."""

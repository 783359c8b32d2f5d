"""Face recognition: data, pre-training, calls to the sites about a finished model, and evaluation."""

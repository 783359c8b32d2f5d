"""Networks, losses and the few things that every training step needs."""

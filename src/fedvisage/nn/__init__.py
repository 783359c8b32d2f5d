"""Networks, losses, optimizers, and the numerical steps shared by all training."""

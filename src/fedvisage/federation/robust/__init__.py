"""Rules that combine uploads of which some may be hostile: one rule a file, pure functions of tensors."""

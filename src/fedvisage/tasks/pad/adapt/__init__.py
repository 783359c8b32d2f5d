"""Test-time adaptation: what a user can do with a finished model and its own unlabelled images."""

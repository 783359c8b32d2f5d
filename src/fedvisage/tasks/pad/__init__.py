"""Presentation attack detection: data, held-out scores of the sites, evaluation, and test-time adaptation."""

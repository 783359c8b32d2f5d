"""Presentation attack detection: its data, what sites say of a finished model, its judgement, predictions."""

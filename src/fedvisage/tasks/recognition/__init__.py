"""Face recognition: its data, its first model, what sites say of a finished one, its judgement, comparisons."""

"""What is written down for good: the ledger, checkpoints, sites' private state, and releases."""

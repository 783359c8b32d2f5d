"""Persistent records: the ledger, checkpoints, and the private state and releases of sites."""

"""The cells of NVFlare, its processes: which messages they accept, and how those of a kit connect."""

SWITCH_INTERVAL = 0.1
"""Seconds for which a thread keeps the interpreter while others wait for it. NVFlare has ten threads per member, and by
Python's default each one that waits wakes up every 5 ms: at 200 members the server did little else."""

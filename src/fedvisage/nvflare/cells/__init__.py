"""The cells of NVFlare, its processes: which messages they accept, and how those of a kit connect."""

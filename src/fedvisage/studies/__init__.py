"""Studies: grids of recipes over targets, rows and seeds, the demo, and shipped recipes."""

"""``python -m fedvisage`` is the command ``fedvisage``."""

from fedvisage.cli import main

main()

"""The command ``fedvisage``, also ``python -m fedvisage``: it handles Ctrl-C before the command line is loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while modules load ends it with one line and exit code 130, as later."""
    try:
        from fedvisage import cli

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("fedvisage: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

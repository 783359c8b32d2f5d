"""The contract tests on a method of your own: ``python -m tests.contract my_scaffold:METHOD``.

The method is imported by name, like an entry point, and joins the examples while the tests run.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests import toy
from tests.contract.examples import EXAMPLES

CONTRACT = Path(__file__).with_name("test_every_method.py")


def main() -> int:
    """Run the tests of every method for this one."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    parser.add_argument("method", help="MODULE:NAME")
    parser.add_argument("--sgd", action="store_true", help="train with plain SGD, for methods that need it")
    options = parser.parse_args()
    module, _, name = options.method.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    method = getattr(import_module(module), name)
    EXAMPLES[method.name] = method
    if options.sgd:
        toy.NEEDS = {**toy.NEEDS, method.name: {"name": "sgd", "lr": 0.05}}
    root = CONTRACT.parents[2]
    return pytest.main(
        ["-q", "--color=no", "-p", "no:cacheprovider", f"--rootdir={root}", "-k", f"[{method.name}]", str(CONTRACT)]
    )


if __name__ == "__main__":
    sys.exit(main())

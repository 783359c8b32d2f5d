"""Methods that exist for the tests: they show that more than averaging fits, and stay short.

Beside them stand examples of docs/extending.md: a method with another local loss, and a model under an algorithm. Its
SCAFFOLD is held against the package's byte by byte in tests/test_documentation.py.
"""

from dataclasses import replace

from tests.contract.examples import released, split, two_exchanges
from tests.documented import example

from fedvisage.methods.algorithms.fedprox import fedprox

ON_SMALL = replace(fedprox(example("small").MODEL), name="fedprox-small")
DOCUMENTED = (example("smoothed").METHOD, ON_SMALL)
EXAMPLES = {method.name: method for method in (two_exchanges.METHOD, split.METHOD, released.METHOD, *DOCUMENTED)}

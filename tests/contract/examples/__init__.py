"""Methods that exist for the tests: they show that more than averaging fits, and stay short."""

from tests.contract.examples import released, split, two_exchanges

EXAMPLES = {module.METHOD.name: module.METHOD for module in (two_exchanges, split, released)}

"""Commands called in this process: their results, their output, and their refusals."""

import pytest
from typer.testing import CliRunner, Result

from fedvisage.base.errors import UserError
from fedvisage.cli import app


def call(*words: object, stdin: bytes = b"") -> Result:
    """Call a command and return its result, which has the exception of a failure."""
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def output_of(*words: object, stdin: bytes = b"") -> str:
    """Call a command that succeeds, and return its standard output; a failure raises the command's exception."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal_of(*words: object) -> UserError:
    """Call a command that is refused, and return the error, which has one line."""
    with pytest.raises(UserError) as caught:
        output_of(*words)
    assert "\n" not in str(caught.value)
    return caught.value

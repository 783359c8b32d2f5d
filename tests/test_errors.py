"""Mistakes found in worker processes arrive whole in the process that tells the user."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from fedvisage.errors import UserError


def fail() -> None:
    raise UserError("photos/ada.jpg", "is no picture")


def test_a_mistake_found_in_another_process_arrives_with_its_place_and_message() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(UserError, match=r"^photos/ada\.jpg: is no picture$") as caught,
    ):
        pool.submit(fail).result()
    assert (caught.value.place, caught.value.message) == ("photos/ada.jpg", "is no picture")

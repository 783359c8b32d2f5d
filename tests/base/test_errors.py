"""Errors of worker processes reach the main process complete, and their text cannot control a terminal."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from fedvisage.base.errors import RunFailed, UserError


def fail() -> None:
    raise UserError("photos/ada.jpg", "is no picture")


def test_error_of_another_process_keeps_its_place_and_message() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(UserError, match=r"^photos/ada\.jpg: is no picture$") as caught,
    ):
        pool.submit(fail).result()
    assert (caught.value.place, caught.value.message) == ("photos/ada.jpg", "is no picture")


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "one\ntwo", "half \ud800 letter", "turned \u202egnp.exe", "\x00", "x" * 100_000]
)
def test_error_text_is_one_printable_line(text: str) -> None:
    for error in (UserError(text, "is no picture"), UserError("photo", text), RunFailed(text)):
        assert str(error).isprintable()
        assert len(str(error).encode()) < 3 * 2001


def test_error_text_keeps_letters_of_all_languages() -> None:
    assert str(UserError("Fotos/Jürgen 王.jpg", "fehlt – “nichts”")) == "Fotos/Jürgen 王.jpg: fehlt – “nichts”"

"""The operator's page: its content, and that its text is inert."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.report.federation_states import EVIL, NOW, hostile, usual
from tests.report.pages import Page
from tests.report.test_page_in_browser import CHROMIUM, measure

from fedvisage.report.federation_page import FederationState, page


def test_page_states_sites_progress_spending_and_failures() -> None:
    text = Page(page(usual(), 5, NOW)).text
    for words in (
        *("fed.example.org:8002", "3 s ago", "bank 4 s ago 2027-08-01", "border ends on 2026-12-05, in 12 days"),
        *("10 min ago (stale)", "faces-0a1b2c3d4e5f running", "round 7 of 30, about 8 min left", "80.0 MB", "84.0 MB"),
        *("ε 2.4, δ 1e-06 spent of ε 8, δ 1e-05", "phone did not answer within 600 s", "second-99aa waiting"),
        *("7 2 of 3 0.5700 6.10 8.0 MB 12.0 MB 20.0", "2026-11-23 09:27:00"),
    ):
        assert words in text


def test_page_fetches_only_itself() -> None:
    for text in (page(usual(), 5, NOW), page(hostile(), 5, NOW)):
        shown = Page(text)
        assert ("meta", {"http-equiv": "refresh", "content": "5"}) in shown.elements
        assert not shown.tags & {"script", "img", "link", "iframe", "object", "base", "form", "a"}
        assert not [name for name, _ in shown.attributes if name.startswith("on")]
        (policy,) = [
            attributes["content"]
            for _, attributes in shown.elements
            if attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        assert str(policy).startswith("default-src 'none'")
        assert not re.search(r"url\(|@import", text)


def test_foreign_text_is_escaped_and_truncated() -> None:
    text = page(hostile(), 5, NOW)
    assert EVIL.split("\x1b")[0] in Page(text).text
    assert "\x1b" not in text
    assert "x" * 200 not in text


def test_foreign_reply_is_reported() -> None:
    strange = replace(usual(), status={"sites": [{"name": 3}], "runs": "many"})
    assert "answer cannot be read" in page(strange, 5, NOW)


def test_page_keeps_and_marks_the_last_state_of_a_silent_server() -> None:
    silent = replace(usual(), trouble="the server did not answer within 20 s")
    text = Page(page(silent, 5, NOW + timedelta(minutes=10))).text
    assert "No answer now. the server did not answer within 20 s" in text
    assert "10 min ago" in text
    assert "bank" in text
    assert "first time" in page(FederationState("fed.example.org:8002", {}, {}), 5, NOW)


@pytest.mark.long
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on the PATH to lay the page out")
@pytest.mark.parametrize(("state", "width"), [(usual(), 390), (hostile(), 390), (usual(), 1400)])
def test_console_page_fits_the_screen(tmp_path: Path, state: FederationState, width: int) -> None:
    (tmp_path / "console.html").write_text(page(state, 60, NOW))
    sizes = measure(tmp_path / "console.html", width, tmp_path)
    assert sizes["width"] == width
    assert sizes["needed"] <= width
    assert sizes["holes"] == 0

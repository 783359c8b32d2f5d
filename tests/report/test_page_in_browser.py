"""Layout of the report in a browser, on phones and wide screens."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.report.run_files import make_run

from fedvisage.report.page import write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
pytestmark = [pytest.mark.skipif(not CHROMIUM, reason="no chromium on the PATH to lay the page out"), pytest.mark.long]

MEASURE = """
<iframe id="page" style="border: 0; width: {width}px; height: 900px" srcdoc="{page}"></iframe><p id="said"></p>
<script>
document.getElementById("page").addEventListener("load", event => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const cards = [...page.querySelectorAll(".cards li")].map(card => card.getBoundingClientRect());
  const right = Math.max(...cards.map(card => card.right));
  const rows = [...new Set(cards.map(card => Math.round(card.top)))];
  const ends = rows.map(top => Math.max(...cards.filter(card => Math.round(card.top) === top).map(card => card.right)));
  const cut = [...page.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth + 1).length;
  document.getElementById("said").textContent = JSON.stringify({{
    width: root.clientWidth, needed: root.scrollWidth, holes: ends.filter(end => right - end > 2).length,
    cut: cut,
  }});
}});
</script>
"""


def measure(page: Path, width: int, tmp_path: Path) -> dict[str, int]:
    """Return the size of a page laid out at a width, and the number of holes and cut tables."""
    frame = tmp_path / "frame.html"
    frame.write_text(MEASURE.format(width=width, page=html.escape(page.read_text(encoding="utf-8"))), encoding="utf-8")
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
    )
    shown = subprocess.run(
        [CHROMIUM, *options, "--virtual-time-budget=5000", "--window-size=1500,1000", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    output = re.search(r'<p id="said">(.*?)</p>', shown.stdout)
    assert output is not None
    sizes: dict[str, int] = json.loads(html.unescape(output[1]))
    return sizes


@pytest.mark.parametrize("width", [390, 1400])
def test_report_fits_the_screen_and_cards_fill_their_rows(tmp_path: Path, width: int) -> None:
    run = make_run(tmp_path / "run", sites=("bank-of-the-north", "I", "O"), rounds=3, resamples=20)
    sizes = measure(write_report(run), width, tmp_path)
    assert sizes["width"] == width
    assert sizes["needed"] <= width
    assert sizes["holes"] == 0
    assert sizes["cut"] == 0

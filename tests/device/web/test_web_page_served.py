"""The page of the service: keys, and pictures sent to the service only on request."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.service import serve_in_thread
from tests.device.web.conftest import open_page, wait_for_state
from tests.device.web.test_web_page_use import score_of, show

from fedvisage.device import Exported, Pipeline
from fedvisage.device.service.access import CHECK, Caller, Keys
from fedvisage.device.service.app import build, open_engine, server_of
from fedvisage.device.service.limits import Limits
from fedvisage.device.web.site import RuntimeFiles, page_files

pytestmark = pytest.mark.browser

KEY = "a-key-of-the-tests-0123456789"
KEYS = Keys([(KEY, Caller("kiosk", CHECK))])


Serve = Callable[..., AbstractContextManager[str]]
Screens = dict[str, np.ndarray]


@pytest.fixture
def serve(difference_export: Path, recognition: Path) -> Serve:
    """Return a function that serves the page with the files of a runtime, and yields its address."""

    @contextmanager
    def serve_page(runtime: RuntimeFiles, keys: Keys = KEYS) -> Iterator[str]:
        models = Exported.open(difference_export), Exported.open(recognition)
        page = page_files(*models, service={"keys": bool(keys)}, runtime=runtime)
        guard = build(open_engine(*models), keys=keys, limits=Limits(rate=0), page=page)
        with serve_in_thread(server_of(guard, "127.0.0.1", 0)) as port:
            yield f"http://localhost:{port}/"

    return serve_page


def test_served_page_computes_without_the_service(
    browser: Any, serve: Serve, runtime: RuntimeFiles, webcam_frames: Screens
) -> None:
    requests = list[tuple[str, str]]()
    listeners = {"request": lambda request: requests.append((request.method, request.url))}
    with serve(runtime, Keys()) as address, open_page(browser, address, listeners=listeners) as page:
        assert show(page, webcam_frames["bonafide"]).startswith("Living")
        assert "in this page" in page.text_content("#models")
        assert "POST" not in {method for method, _ in requests}


def test_pictures_go_to_the_service_only_on_request_with_equal_results(
    browser: Any, serve: Serve, difference_export: Path, runtime: RuntimeFiles, webcam_frames: Screens
) -> None:
    requests = list[tuple[str, str]]()
    listeners = {"request": lambda request: requests.append((request.method, request.url))}
    with serve(runtime, Keys()) as address, open_page(browser, address, listeners=listeners) as page:
        page.get_by_label("at the service").check()
        page.wait_for_selector("#promise:has-text('are sent')")
        wait_for_state(page)
        for name, title in (("bonafide", "Living face"), ("replay", "Attack")):
            expected = Pipeline(difference_export).check(webcam_frames[name]).faces[0].pad
            assert expected is not None
            assert show(page, webcam_frames[name], f"{name}.png") == title
            assert score_of(page) == pytest.approx(expected.score, abs=1e-3)
        posted = [url.removeprefix(address) for method, url in requests if method == "POST"]
        assert posted == ["v1/embed"] * 2
        assert show(page, webcam_frames["bonafide"], "again.png") == "Living face"
        page.get_by_label("Name").fill("Anna")
        page.get_by_role("button", name="Enrol this face").click()
        page.wait_for_selector("#matched:has-text('This is Anna.')")


def test_models_are_delivered_only_after_the_key(
    browser: Any, serve: Serve, runtime: RuntimeFiles, webcam_frames: Screens
) -> None:
    with serve(runtime) as address, open_page(browser, address, "refused") as page:
        assert "key" in page.inner_text("#state")
        page.get_by_label("Key of the service").fill("not the key of the service")
        page.get_by_role("button", name="Begin").click()
        page.wait_for_selector("#state:has-text('not one of its keys')")
        page.get_by_label("Key of the service").fill(KEY)
        page.keyboard.press("Enter")
        wait_for_state(page)
        assert page.get_by_label("Key of the service").is_hidden()
        assert page.evaluate("document.activeElement.id") == "camera", "the keyboard goes on from there"
        assert show(page, webcam_frames["bonafide"]).startswith("Living")


def test_page_without_runtime_uses_the_service_and_states_it(
    browser: Any, serve: Serve, tmp_path: Path, webcam_frames: Screens
) -> None:
    with serve(RuntimeFiles(tmp_path), Keys()) as address, open_page(browser, address) as page:
        assert "are sent to the service" in page.inner_text("#promise")
        assert page.get_by_label("in this page").is_disabled()
        assert show(page, webcam_frames["replay"]).startswith("Attack")


def test_page_waiting_for_a_key_states_where_pictures_go(browser: Any, serve: Serve, tmp_path: Path) -> None:
    with serve(RuntimeFiles(tmp_path)) as address, open_page(browser, address, "refused") as page:
        assert "are sent to the service" in page.inner_text("#promise")

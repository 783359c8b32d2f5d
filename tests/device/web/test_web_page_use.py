"""Use of the page in Chromium: camera, files, people, refusals, and network requests."""

import base64
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.commands import output_of
from tests.device.web.conftest import PATIENCE, as_png, as_webcam, open_browser, open_page, serve_folder, wait_for_state
from tests.documented import ROOT

from fedvisage.device import Pipeline
from fedvisage.device.web.site import RuntimeFiles

pytestmark = pytest.mark.browser

SCREENSHOTS = ROOT / "build" / "browser"
FAKE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
GRAB = """(id) => {
  const source = document.getElementById(id);
  const canvas = document.createElement("canvas");
  canvas.width = source.videoWidth ?? source.width;
  canvas.height = source.videoHeight ?? source.height;
  canvas.getContext("2d").drawImage(source, 0, 0);
  return canvas.toDataURL("image/png");
}"""
VIOLATED = """async (attempt) => {
  const event = new Promise((resolve) => document.addEventListener("securitypolicyviolation", resolve, { once: true }));
  const put = (tag, values) => document.body.append(Object.assign(document.createElement(tag), values));
  const attempts = {
    script: () => put("script", { textContent: "window.ran = 1" }),
    style: () => put("style", { textContent: "body { top: 0 }" }),
    elsewhere: () => fetch("http://127.0.0.1:9/").catch(() => {}),
    picture: () => { new Image().src = "http://127.0.0.1:9/one.png"; },
    frame: () => put("iframe", { src: "index.html" }),
  };
  attempts[attempt]();
  return [(await event).effectiveDirective, window.ran ?? 0];
}"""


WATCH = """() => {
  window.decisions = [];
  const verdict = document.getElementById("verdict");
  const note = () => {
    const decision = verdict.dataset.decision;
    if (decision !== window.decisions.at(-1)) window.decisions.push(decision);
  };
  new MutationObserver(note).observe(verdict, { attributeFilter: ["data-decision"] });
}"""
CHOOSE = """(pictures) => {
  const input = document.getElementById("file");
  for (const [name, content] of Object.entries(pictures)) {
    const chosen = new DataTransfer();
    chosen.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name));
    input.files = chosen.files;
    input.dispatchEvent(new Event("change"));
  }
}"""


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with open_page(browser, address) as opened:
        yield opened


def show(page: Any, picture: np.ndarray, name: str = "one.png") -> str:
    """Choose a picture, and return the page's decision."""
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": as_png(picture)})
    page.wait_for_selector(f"#state:has-text('{name} was checked')", timeout=PATIENCE)
    decision: str = page.inner_text("#decision")
    return decision


def pixels_of(page: Any, place: str) -> np.ndarray:
    """Return the displayed pixels with their opacity."""
    content = base64.b64decode(page.evaluate(GRAB, place).partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))


def drawn_box(page: Any) -> list[float]:
    """Return the box drawn over the picture: its outer edge, less half of the line."""
    opacity = pixels_of(page, "boxes")[..., 3] / 255
    half = max(2, opacity.shape[1] / 200)  # the black line, twice as wide as the white one
    ends = list[float]()
    for axis in (0, 1):
        across = opacity.max(axis=axis)
        (places,) = np.nonzero(across)
        # A pixel at the edge is as opaque as its share that is drawn on.
        first, last = places[0] + 1 - across[places[0]], places[-1] + across[places[-1]]
        ends += [first + half, last - half]
    left, right, top, bottom = ends
    return [left, top, right - left, bottom - top]


def score_of(page: Any) -> float:
    match = re.search(r"Score (0\.\d+)", page.inner_text("#figures"))
    assert match, page.inner_text("#figures")
    return float(match[1])


@pytest.mark.parametrize(
    ("species", "title", "selector"),
    [
        ("bonafide", "Living face", "#matched:has-text('This is Anna.')"),
        ("replay", "Attack", "#state[data-kind=refused]:has-text('no living face')"),
    ],
)
def test_webcam_tells_live_person_from_replay(
    playwright: Any,
    chromium: str,
    address: str,
    difference_export: Path,
    webcam_frames: dict[str, np.ndarray],
    tmp_path: Path,
    species: str,
    title: str,
    selector: str,
) -> None:
    camera = as_webcam(webcam_frames[species], tmp_path / "camera.mjpeg")
    flags = (*FAKE, f"--use-file-for-fake-video-capture={camera}")
    with open_browser(playwright, chromium, *flags) as browser, open_page(browser, address) as page:
        show(page, webcam_frames["replay" if species == "bonafide" else "bonafide"])
        page.evaluate(WATCH)
        page.get_by_role("button", name="Start the camera").click()
        page.wait_for_selector(f"#decision:has-text('{title}')", timeout=PATIENCE)
        assert page.evaluate("window.decisions")[0] == "none", "the result of the picture is removed"
        frame = np.ascontiguousarray(pixels_of(page, "video")[..., :3])
        (face,) = Pipeline(difference_export).check(frame).faces
        expected = face.pad
        assert expected is not None
        assert expected.score is not None
        assert page.get_attribute("#verdict", "data-decision") == expected.decision
        assert score_of(page) == pytest.approx(expected.score, abs=1e-3)
        box = [face.box.x, face.box.y, face.box.width, face.box.height]
        assert drawn_box(page) == pytest.approx(box, abs=1)
        assert f"threshold {expected.threshold:.4f} (source-eer)" in page.inner_text("#figures")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"webcam-{species}.png", full_page=True)
        page.get_by_label("Name").fill("Anna")
        page.get_by_role("button", name="Enrol this face").click()
        page.wait_for_selector(selector, timeout=PATIENCE)
        page.get_by_role("button", name="Stop the camera").click()
        page.wait_for_selector("#video", state="hidden")
        check_no_result(page)


@pytest.mark.parametrize(
    ("name", "words"), [("wall", "no face"), ("two", "several faces"), ("small", "too small"), ("blurred", "blurred")]
)
def test_unusable_picture_shows_why(page: Any, photographs: dict[str, np.ndarray], name: str, words: str) -> None:
    message = show(page, photographs[name])
    assert message.startswith("No decision")
    assert words in message
    assert page.get_attribute("#verdict", "data-decision") == "no_decision"


def test_page_shows_notes_in_brackets_after_the_decision(page: Any, webcam_frames: dict[str, np.ndarray]) -> None:
    grey = np.repeat(webcam_frames["bonafide"].mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
    message = show(page, grey, "grey.png")
    assert re.fullmatch(r"(Living face|Attack) \(grey, like infrared: the model expects colour\)", message), message


def test_file_without_a_picture_shows_an_error(page: Any) -> None:
    page.set_input_files("#file", {"name": "notes.png", "mimeType": "image/png", "buffer": b"no picture"})
    assert "notes.png: is not an image" in wait_for_state(page, "refused")


def in_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no picture", "is not an image"),
        (in_png(Image.new("1", (8001, 8001))), "at most 64 million"),
        (in_png(Image.new("RGBA", (640, 480), (200, 150, 130, 1))), "transparent pixels"),
    ],
    ids=["unreadable", "large", "transparent"],
)
def test_refused_picture_leaves_no_result_of_the_last_one(
    page: Any, webcam_frames: dict[str, np.ndarray], content: bytes, words: str
) -> None:
    assert show(page, webcam_frames["bonafide"]).startswith("Living")
    for _ in range(2):  # the same file can be chosen again
        page.evaluate("() => { document.getElementById('state').dataset.kind = 'none'; }")
        page.set_input_files("#file", {"name": "refused.png", "mimeType": "image/png", "buffer": content})
        assert words in wait_for_state(page, "refused")
        assert page.evaluate("document.getElementById('file').files.length") == 0
    check_no_result(page)
    page.get_by_label("Name").fill("Anna")
    page.get_by_role("button", name="Enrol this face").click()
    page.wait_for_selector("#state:has-text('no living face')")
    assert page.inner_text("#list") == ""


def check_no_result(page: Any) -> None:
    """Check that the page shows no decision, no score, no boxes and no similarity."""
    assert page.get_attribute("#verdict", "data-decision") == "none"
    texts = [page.inner_text(place) for place in ("#mark", "#decision", "#figures", "#speed", "#matched")]
    assert texts == ["", "No decision yet", "", "", ""]
    assert page.get_attribute("#bar", "data-known") == "false"
    assert not pixels_of(page, "boxes").any()


def test_last_result_is_removed_while_the_next_picture_is_checked(
    page: Any, webcam_frames: dict[str, np.ndarray]
) -> None:
    assert show(page, webcam_frames["bonafide"]).startswith("Living")
    page.evaluate(WATCH)
    assert show(page, webcam_frames["replay"], "replay.png").startswith("Attack")
    assert page.evaluate("window.decisions") == ["none", "attack"]


def test_only_the_last_chosen_picture_gets_a_result(page: Any, webcam_frames: dict[str, np.ndarray]) -> None:
    page.evaluate(WATCH)
    page.evaluate(CHOOSE, {name: base64.b64encode(as_png(image)).decode() for name, image in webcam_frames.items()})
    page.wait_for_selector("#state:has-text('replay was checked')", timeout=PATIENCE)
    assert page.evaluate("window.decisions") == ["none", "attack"]


def test_page_enrols_and_compares_people_and_refuses_attacks(page: Any, webcam_frames: dict[str, np.ndarray]) -> None:
    assert show(page, webcam_frames["replay"], "replay.png").startswith("Attack")
    page.get_by_label("Name").fill("Anna")
    page.get_by_role("button", name="Enrol this face").click()
    assert "no living face" in wait_for_state(page, "refused")
    assert show(page, webcam_frames["bonafide"], "anna.png").startswith("Living")
    page.get_by_role("button", name="Enrol this face").click()
    page.wait_for_selector("#matched:has-text('This is Anna.')")
    assert "similarity 1.000" in page.inner_text("#list")
    page.get_by_role("button", name="Remove Anna").click()
    page.wait_for_selector("#list li", state="detached")
    assert page.inner_text("#matched") == ""


def test_picture_never_leaves_the_page(browser: Any, address: str, webcam_frames: dict[str, np.ndarray]) -> None:
    requests = list[tuple[str, str]]()
    listeners = {"request": lambda request: requests.append((request.method, request.url))}
    with open_page(browser, address, listeners=listeners) as page:
        before = len(requests)
        show(page, webcam_frames["bonafide"])
        assert {url for _, url in requests if not url.startswith((address, "blob:" + address))} == set()
        assert {method for method, _ in requests} == {"GET"}
        # A second worker only loads the same files again.
        assert set(requests[before:]) <= set(requests[:before])


@pytest.mark.parametrize(
    ("attempt", "directive"),
    [
        ("script", "script-src-elem"),
        ("style", "style-src-elem"),
        ("elsewhere", "connect-src"),
        ("picture", "img-src"),
        ("frame", "frame-src"),
    ],
)
def test_policy_forbids_unneeded_features(page: Any, attempt: str, directive: str) -> None:
    assert page.evaluate(VIOLATED, attempt) == [directive, 0]


def test_browser_reports_no_error(browser: Any, address: str, webcam_frames: dict[str, np.ndarray]) -> None:
    messages = list[tuple[str, str]]()
    listeners = {
        "console": lambda message: messages.append((message.type, message.text)),
        "pageerror": lambda error: messages.append(("error", str(error))),
    }
    with open_page(browser, address, listeners=listeners) as page:
        assert show(page, webcam_frames["bonafide"]).startswith("Living")
    assert [text for kind, text in messages if kind in ("error", "warning")] == []


@pytest.mark.parametrize(
    ("flags", "word"),
    [((), "No camera was found"), (("--use-fake-device-for-media-stream", "--deny-permission-prompts"), "was denied")],
    ids=["none", "refused"],
)
def test_missing_camera_is_reported_and_pictures_still_work(
    playwright: Any,
    chromium: str,
    address: str,
    webcam_frames: dict[str, np.ndarray],
    flags: tuple[str, ...],
    word: str,
) -> None:
    with open_browser(playwright, chromium, *flags) as browser, open_page(browser, address) as page:
        page.get_by_role("button", name="Start the camera").click()
        message = wait_for_state(page, "refused")
        assert word in message
        assert "choose a picture" in message
        assert show(page, webcam_frames["bonafide"]).startswith("Living")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), ("models/pad/onnx/model.onnx", "missing")),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), ("models/pad/onnx/model.onnx", "digest")),
    ],
    ids=["missing", "changed"],
)
def test_missing_or_different_model_is_refused(
    browser: Any, folder: Path, tmp_path: Path, damage: Any, words: tuple[str, ...]
) -> None:
    copy = tmp_path / "page"
    shutil.copytree(folder, copy)
    damage(copy / "models/pad/onnx/model.onnx")
    with serve_folder(copy) as address, open_page(browser, address, "refused") as page:
        message = page.inner_text("#state")
        assert all(word in message for word in words), message
        assert page.get_by_role("button", name="Start the camera").is_disabled()


def test_page_update_is_cached_as_a_whole(browser: Any, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "page"
    shutil.copytree(folder, copy)
    start, index = copy / "page.json", copy / "index.html"
    with browser.new_context() as context:
        page = context.new_page()
        with serve_folder(copy) as address:
            page.goto(address)
            wait_for_state(page)
            page.evaluate("async () => { await navigator.serviceWorker.ready; }")
            contents = json.loads(start.read_text())["contents"]
            start.write_text(start.read_text().replace(contents, "updated"))
            index.write_text(re.sub("<title>.*</title>", "<title>updated</title>", index.read_text()))
            page.goto(address)
            wait_for_state(page)
            page.wait_for_function(
                "async () => (await caches.keys()).every((name) => name.endsWith('updated'))", timeout=PATIENCE
            )
        page.reload()
        wait_for_state(page)
        assert page.title() == "updated"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_page_fits_the_screen_and_is_legible(
    browser: Any, address: str, webcam_frames: dict[str, np.ndarray], width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 844}
    with open_page(browser, address, viewport=viewport, color_scheme=scheme) as page:
        show(page, webcam_frames["bonafide"])
        page.get_by_label("Name").fill("Anna")
        page.get_by_role("button", name="Enrol this face").click()
        page.wait_for_selector("#matched:has-text('Anna')")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"page-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in ("#promise", "#decision", "#figures", "#speed", "#camera", "#state"):
            assert contrast(page, place) >= 4.5, place
        for button in page.get_by_role("button").all():
            assert button.bounding_box()["height"] >= 44, button.inner_text()


def contrast(page: Any, place: str) -> float:
    """Return the contrast of an element's text with its background, as WCAG 2 defines it."""
    colours = page.evaluate(
        """(place) => {
          let element = document.querySelector(place);
          const words = getComputedStyle(element).color;
          let behind = "rgba(0, 0, 0, 0)";
          for (; element && behind === "rgba(0, 0, 0, 0)"; element = element.parentElement) {
            behind = getComputedStyle(element).backgroundColor;
          }
          return [words, behind];
        }""",
        place,
    )
    light = sorted(luminance([int(number) for number in re.findall(r"\d+", colour)[:3]]) for colour in colours)
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(colour: list[int]) -> float:
    linear = [
        share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4
        for share in (value / 255 for value in colour)
    ]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def test_page_is_usable_with_the_keyboard(page: Any, webcam_frames: dict[str, np.ndarray]) -> None:
    show(page, webcam_frames["bonafide"])
    reached = list[str]()
    page.evaluate("document.activeElement.blur()")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    wanted = ["A", "camera", "file", "name", "BUTTON", "SUMMARY"]
    assert [element for element in dict.fromkeys(reached) if element in wanted] == wanted
    page.get_by_label("Name").focus()
    page.keyboard.type("Anna")
    page.keyboard.press("Enter")
    page.wait_for_selector("#matched:has-text('This is Anna.')")


def test_screen_reader_gets_labels_and_changes(page: Any, webcam_frames: dict[str, np.ndarray]) -> None:
    show(page, webcam_frames["bonafide"])
    status = [element.inner_text() for element in page.get_by_role("status").all()]
    assert any("Living face" in text for text in status)
    assert page.get_by_label("Choose a picture").get_attribute("type") == "file"
    assert page.get_by_role("button", name="Start the camera").get_attribute("aria-pressed") == "false"
    assert re.search(r"Score 0\.\d+; threshold 0\.\d+", page.locator("#bar").get_attribute("aria-label"))
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, video, canvas:not([aria-hidden])')].filter("
        "(one) => !(one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label'))).length"
    )
    assert unnamed == 0


def test_documented_command_builds_the_page(
    difference_export: Path, recognition: Path, runtime: RuntimeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "device.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(.*?)```", page[page.index("## In the browser") :], flags=re.DOTALL)
    _, build, deliver = (shlex.split(line) for line in block.splitlines())
    for name, exported in (("pad", difference_export), ("faces", recognition)):
        shutil.copytree(exported, tmp_path / "exported" / name)
    monkeypatch.chdir(tmp_path)
    assert runtime.is_there
    output_of(*build[1:])
    assert (Path(deliver[deliver.index("--directory") + 1]) / "index.html").is_file()

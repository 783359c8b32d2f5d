"""The page's check of graphs in Node accepts the same exports as Python, and refuses external data."""

import json
import shutil
import subprocess
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from campaigns.hostile.exports import HIDING
from pydantic import BaseModel, ValidationError

from fedvisage.device.exported import CONFIG, GRAPH, OperatingPoint
from fedvisage.device.fused import FusedConfig
from fedvisage.faces.detection import DIGESTS, read_installed
from fedvisage.metrics.threshold import OF_FURTHER, OF_PICTURES, Estimate, Threshold
from fedvisage.runs.export.fuse import fuse

CHECK = """
import { readFileSync } from "node:fs";
import { readGraph } from "./graph.js";
import { checkStated } from "./models.js";
const [graph, config] = process.argv.slice(2);
try {
  const bytes = readFileSync(graph);
  const stated = readGraph("model.onnx", bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  if (config) checkStated("model.onnx", stated, JSON.parse(readFileSync(config)).float32.description);
  console.log("accepted");
} catch (error) {
  console.log(error.code, error.message);
}
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the page's modules to a folder that Node treats as modules."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed; install the system's package nodejs")
    place = tmp_path_factory.mktemp("page")
    for name in ("graph.js", "models.js", "offline.js", "refused.js"):
        (place / name).write_bytes(files("fedvisage.device.web").joinpath("page", name).read_bytes())
    (place / "package.json").write_text('{"type": "module"}')
    return place / "check.js"


def run_node(script: Path, code: str, *words: object) -> str:
    """Run code beside the page's modules, and return its output."""
    script.write_text(code)
    command = ["node", str(script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def answer(script: Path, graph: Path, *config: Path) -> str:
    return run_node(script, CHECK, graph, *config)


@pytest.mark.long
def test_exports_and_detector_networks_are_accepted(script: Path, pad: Path, recognition: Path, tmp_path: Path) -> None:
    for directory in (pad, recognition):
        assert answer(script, directory / GRAPH, directory / CONFIG) == "accepted"
    for name in DIGESTS:
        (tmp_path / name).write_bytes(read_installed(name))
        assert answer(script, tmp_path / name) == "accepted"


@pytest.mark.parametrize("hide", HIDING, ids=lambda hide: hide.__name__)
def test_graph_with_external_data_is_refused(script: Path, pad: Path, tmp_path: Path, hide: object) -> None:
    model = onnx.load(pad / GRAPH)
    tensor = onnx.TensorProto(name="hidden", data_type=2, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="keys.txt")
    assert callable(hide)
    hide(model, tensor)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    message = answer(script, tmp_path / "model.onnx", pad / CONFIG)
    assert message.startswith("damaged model.onnx: has ")
    assert message.endswith("export the model again")


def test_page_refuses_a_changed_threshold(script: Path, pad: Path, tmp_path: Path) -> None:
    config = json.loads((pad / CONFIG).read_text())
    config["float32"]["description"]["threshold"]["value"] = -0.99
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert "contains another threshold" in answer(script, pad / GRAPH, tmp_path / CONFIG)


@pytest.mark.parametrize("content", [b"\x0a\xff", b"\x0b", b"\x80" * 20, b"\x3a\x05\x0a\xff\xff\xff\x7f"])
def test_bytes_without_a_graph_are_refused(script: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    refusal = "damaged model.onnx: is not a complete graph; export the model again"
    assert answer(script, tmp_path / "model.onnx") == refusal


POINTS: list[dict[str, object]] = [
    {"value": 0.5, "rule": "source-eer"},
    {"value": -100, "rule": "", "far": None, "frr": 1},
    {"value": 100.1, "rule": "fixed"},
    {"value": "0.5", "rule": "fixed"},
    {"value": True, "rule": "fixed"},
    {"value": None, "rule": "fixed"},
    {"value": 0.5},
    {"value": 0.5, "rule": "a" * 201},
    {"value": 0.5, "rule": "a\nb"},
    {"value": 0.5, "rule": "fixed", "far": 1.5},
    {"value": 0.5, "rule": "fixed", "other": 1},
]


MEMBER = {"config": {"bytes": 1, "sha256": "0" * 64}, "weight": 0.25, "scale": 2}
WHOLE = {"fused": 1, "members": [MEMBER] * 2, "threshold": POINTS[0], "model_sha256": "0" * 64, "version": "1"}
FUSIONS: list[dict[str, object]] = [
    WHOLE,
    WHOLE | {"members": [MEMBER] * 16},
    WHOLE | {"members": [MEMBER] * 17},
    WHOLE | {"members": [MEMBER]},
    WHOLE | {"members": [MEMBER, MEMBER | {"weight": 0}]},
    WHOLE | {"members": [MEMBER, MEMBER | {"weight": "1"}]},
    WHOLE | {"members": [MEMBER, MEMBER | {"scale": -1}]},
    WHOLE | {"members": [MEMBER, MEMBER | {"scale": 1e9}]},
    WHOLE | {"members": [MEMBER, MEMBER | {"config": None}]},
    WHOLE | {"threshold": None},
    WHOLE | {"threshold": {"value": 1000, "rule": "fixed"}},
    WHOLE | {"fused": 2},
]


POINT = """
import { operatingPoint } from "./models.js";
console.log(operatingPoint(JSON.parse(process.argv[2])));
"""


@pytest.mark.parametrize("names", [(OF_PICTURES, OF_FURTHER), ("BPCER", "APCER print")])
def test_page_and_python_print_the_same_operating_point(script: Path, names: tuple[str, str]) -> None:
    estimates = {names[0]: Estimate(0.125, 0.02, 0.47), names[1]: Estimate(0.003, 0, 1)}
    point = Threshold(0.5, "rule", None, None, estimates)
    assert run_node(script, POINT, json.dumps(asdict(point))) == point.operating_point


VERDICTS = """
import { checkFused, checkThreshold } from "./models.js";
for (const value of JSON.parse(process.argv[2])) {
  try {
    if ("fused" in value) checkFused("config.json", value, value.threshold);
    else checkThreshold("config.json", value);
    console.log("accepted");
  } catch (error) {
    console.log(error.code);
  }
}
"""


@pytest.mark.parametrize(
    ("values", "schema"), [(POINTS, OperatingPoint), (FUSIONS, FusedConfig)], ids=["thresholds", "fused models"]
)
def test_page_accepts_the_descriptions_that_python_accepts(
    script: Path, values: list[dict[str, object]], schema: type[BaseModel]
) -> None:
    verdicts = run_node(script, VERDICTS, json.dumps(values)).split()
    expected = list[str]()
    for value in values:
        try:
            schema.model_validate_json(json.dumps(value))
            expected.append("accepted")
        except ValidationError:
            expected.append("damaged")
    assert verdicts == expected
    assert expected.count("accepted") == 2


SUM = """
import { readFileSync } from "node:fs";
import { checkSum } from "./models.js";
const config = JSON.parse(readFileSync(process.argv[2]));
const members = JSON.parse(readFileSync(process.argv[3]));
for (const threshold of [config.threshold, { ...config.threshold, value: -50 }]) {
  for (const states of [members, members.map((member) => ({ ...member, fused: undefined })), [{}, {}]]) {
    try {
      checkSum("config.json", { ...config, threshold }, states);
      console.log("accepted");
    } catch (error) {
      console.log(error.message.includes("threshold") ? "threshold" : error.message);
    }
  }
}
"""


def test_page_refuses_a_sum_that_its_members_do_not_state(script: Path, pad: Path, tmp_path: Path) -> None:
    fuse([pad, pad], tmp_path / "sum", scales=[2.0, 0.5], cache=tmp_path)
    places = [tmp_path / "sum/members" / name / CONFIG for name in "12"]
    stated = [json.loads(place.read_text())["float32"]["description"] for place in places]
    members = [{"bound": description["files_sha256"], "fused": description["fused"]} for description in stated]
    (tmp_path / "members.json").write_text(json.dumps(members))
    verdicts = run_node(script, SUM, tmp_path / "sum" / CONFIG, tmp_path / "members.json").splitlines()
    unstated = "config.json: contains another model_sha256 than its members' graphs; fuse the models again"
    # Only a model of an earlier version, whose graphs state nothing, may have any threshold.
    assert verdicts == ["accepted", unstated, "accepted", "threshold", unstated, "accepted"]


def test_description_without_the_statements_of_the_graph_is_refused(script: Path, pad: Path, tmp_path: Path) -> None:
    config = json.loads((pad / CONFIG).read_text())
    del config["float32"]["description"]["files_sha256"]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert "contains another files_sha256" in answer(script, pad / GRAPH, tmp_path / CONFIG)


OFFLINE = """
const [stored, listeners] = [new Map(), {}];
const name = (request) => new URL(request.url ?? request, "http://localhost/").pathname;
let [online, version, broken] = [true, "", ""];
const open = async (key) => {
  if (!stored.has(key)) stored.set(key, new Map());
  return {
    addAll: async (requests) => {
      const answers = await Promise.all(requests.map((request) => fetch(request)));
      if (answers.some((answer) => !answer.ok)) throw new TypeError("not all files");
      requests.forEach((request, index) => stored.get(key).set(name(request), answers[index]));
    },
    match: async (request) => stored.get(key).get(name(request))?.clone(),
  };
};
globalThis.self = {
  addEventListener: (kind, action) => (listeners[kind] = action),
  location: "http://localhost/offline.js",
};
globalThis.Request = class extends Request {
  constructor(path, options) { super(new URL(path, "http://localhost/"), options); }
};
globalThis.caches = {
  open,
  has: async (key) => stored.has(key),
  keys: async () => [...stored.keys()],
  delete: async (key) => stored.delete(key),
};
globalThis.fetch = async (request) => {
  if (!online) throw new TypeError("no network");
  if (name(request) === broken) return new Response("", { status: 500 });
  if (name(request) !== "/page.json") return new Response(`content of ${name(request)}${version}`);
  return Response.json({ offline: ["page.json", "main.js"], contents: `digest${version}` });
};
await open("another program's");
await import("./offline.js");
const happen = async (kind, details = {}) => {
  let result;
  const waits = [];
  const respondWith = (promise) => (result = promise);
  listeners[kind]({ waitUntil: (promise) => waits.push(promise), respondWith, ...details });
  await result;
  await Promise.allSettled(waits);
  return result;
};
await happen("install");
const ask = (path, options) => happen("fetch", { request: new Request(`http://localhost${path}`, options) });
await ask("/v1/models");
online = false;
const shown = async (response) => {
  if (response === undefined) console.log("left alone");
  else console.log(response.ok ? await response.text() : "no answer");
};
await shown(await ask("/main.js"));
await shown(await ask("/"));
await shown(await ask("/v1/models"));
await shown(await ask("/main.js", { headers: { authorization: "Bearer key" } }));
await shown(await ask("/v1/pad", { method: "POST" }));
for (const [next, damaged] of [[" 2", "/main.js"], [" 3", ""]]) {
  [online, version, broken] = [true, next, damaged];
  await ask("/page.json");
  online = false;
  await shown(await ask("/main.js"));
}
console.log([...stored.keys()].join());
"""


def test_page_opens_offline_and_caches_nothing_behind_a_key(script: Path) -> None:
    lines = run_node(script, OFFLINE).splitlines()
    assert lines[:5] == ["content of /main.js", "content of /", "no answer", "left alone", "left alone"]
    # An update is kept whole or not at all, in place of the state before it.
    assert lines[5:] == ["content of /main.js", "content of /main.js 3", "another program's,fedvisage / digest 3"]

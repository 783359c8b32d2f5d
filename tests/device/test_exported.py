"""An untrusted export that differs from its description is refused in one line before it runs."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image
from tests.commands import refusal_of
from tests.refusals import failed, refused

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.data.crops import CropRecord
from fedvisage.device import Exported, Pipeline
from fedvisage.device.service.app import open_engine

GRAPH = "onnx/model.onnx"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def copy(pad: Path, tmp_path: Path) -> Path:
    out = tmp_path / "copy"
    shutil.copytree(pad, out)
    return out


def edit_config(directory: Path, change: Change) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def replace_graph(directory: Path, content: bytes) -> None:
    """Replace the graph and record its digest."""
    (directory / GRAPH).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_config(directory, lambda config: config["float32"].update(file=entry))


def description_of(config: dict[str, Any]) -> dict[str, Any]:
    description: dict[str, Any] = config["float32"]["description"]
    return description


CHANGES: dict[str, Change] = {
    "another threshold": lambda config: description_of(config)["threshold"].update(value=-20.0),
    "a threshold that is no number": lambda config: description_of(config)["threshold"].update(value="NaN"),
    "an infinite threshold": lambda config: description_of(config)["threshold"].update(value=1e999),
    "another task": lambda config: description_of(config).update(task="recognition"),
    "another size": lambda config: description_of(config).update(size=64),
    "a size that fits nowhere": lambda config: description_of(config).update(size=10**9),
    "another model": lambda config: description_of(config).update(model_sha256="0" * 64),
    "another detector": lambda config: description_of(config)["crop"]["detector"].update(sha256="0" * 64),
    "another margin": lambda config: description_of(config)["crop"].update(margin=2.0),
    "a word for terminals": lambda config: description_of(config).update(method="\x1b[2J"),
    "an unknown key": lambda config: description_of(config).update(run="rm -rf"),
    "no description": lambda config: config["float32"].pop("description"),
    "a huge file": lambda config: config["float32"]["file"].update(bytes=1 << 50),
    "nothing": lambda config: config.clear(),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_changed_description_of_an_export_is_refused(copy: Path, name: str) -> None:
    edit_config(copy, CHANGES[name])
    with pytest.raises(UserError) as caught:
        Exported.open(copy)
    assert str(caught.value).isprintable()
    assert str(copy) in caught.value.place


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[1]", "object"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"a":' * 5000, "64 levels"),
        (b" " * (1 << 21), "2,097,152"),
    ],
)
def test_unreadable_description_is_refused(copy: Path, content: bytes, keyword: str) -> None:
    (copy / "config.json").write_bytes(content)
    with refused(copy / "config.json", keyword):
        Exported.open(copy)


def test_graph_with_another_digest_is_refused(copy: Path) -> None:
    content = bytearray((copy / GRAPH).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / GRAPH).write_bytes(bytes(content))
    with refused("copy/onnx/model.onnx", "digest", "config.json"):
        Exported.open(copy)


@pytest.mark.parametrize("content", [b"", b"no graph at all" * 10, b"\x08\x0a"])
def test_file_without_a_graph_is_refused_despite_its_digest(copy: Path, content: bytes) -> None:
    replace_graph(copy, content)
    with refused("copy/onnx/model.onnx", "export"):
        Exported.open(copy)


SECRET = b"sixteen bytes ok"


@pytest.fixture
def spying_export(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an export whose graph reads a file of the working directory, with a matching digest."""
    (tmp_path / "keys.txt").write_bytes(SECRET)
    monkeypatch.chdir(tmp_path)
    model = onnx.load(copy / GRAPH)
    tensor = model.graph.initializer.add(name="secret", data_type=TensorProto.UINT8, dims=[16])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "keys.txt"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    replace_graph(copy, model.SerializeToString())
    return copy


def test_onnx_runtime_itself_reads_external_data(spying_export: Path) -> None:
    """Show that the graph is harmful: otherwise the tests below would prove nothing."""
    model = onnx.load(spying_export / GRAPH, load_external_data=False)
    model.graph.node.add(op_type="Identity", input=["secret"], output=["revealed"])
    model.graph.output.append(helper.make_tensor_value_info("revealed", TensorProto.UINT8, [16]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(["revealed"], {"images": np.zeros((1, 32, 32, 3), np.uint8)})[0].tobytes() == SECRET


@pytest.mark.parametrize(
    "opens", [Exported.open, Pipeline, partial(open_engine, recognition=None)], ids=["export", "pipeline", "service"]
)
def test_export_with_external_data_is_refused(spying_export: Path, opens: Callable[..., object]) -> None:
    with refused("copy/onnx/model.onnx", "secret", "export"):
        opens(spying_export)


def run_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedvisage", *words], capture_output=True, text=True, check=False)


VERBS = {
    "predict": "predict EXPORT photo.png",
    "serve": "serve --pad EXPORT",
    "watch": "watch photo.png --pad EXPORT",
    "adapt": "adapt EXPORT --data . --out adapted",
    "web build": "web build page --pad EXPORT",
    "gallery enrol": "gallery enrol door.gallery ada photo.png --key door.key --pad EXPORT --recognition EXPORT",
    "evaluate": "evaluate --pipeline --pad EXPORT --recognition EXPORT --data .",
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(VERBS))
def test_commands_refuse_external_data_in_one_line(spying_export: Path, photographs: dict[str, Any], name: str) -> None:
    Image.fromarray(photographs["one"]).save("photo.png")
    if name == "gallery enrol":
        run_command(["gallery", "create", "door.gallery", "--key", "door.key"])
    words = [str(spying_export) if word == "EXPORT" else word for word in VERBS[name].split()]
    done = run_command(words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "'secret'" in line


def test_graph_beyond_the_memory_limit_is_refused(copy: Path) -> None:
    model = onnx.load_from_string(constant_graph(copy, TensorProto.UINT8, ["batch", 32, 32, 3], 0.0))
    model.graph.initializer.append(helper.make_tensor("much", TensorProto.INT64, [1], [1 << 50]))
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            node.input[0] = "much"
    replace_graph(copy, model.SerializeToString())
    with failed(RunFailed, "graph", "ONNXRuntimeError"):
        Exported.open(copy).run(np.zeros((1, 32, 32, 3), np.uint8))


@pytest.mark.parametrize("name", ["model.safetensors", "parity.json"])
def test_file_of_another_export_is_refused(copy: Path, recognition: Path, name: str) -> None:
    shutil.copy(recognition / name, copy / name)
    with refused(f"copy/{name}", "config.json"):
        Exported.open(copy)


def test_device_needs_only_description_and_graph(copy: Path) -> None:
    for name in ("model.safetensors", "parity.json", "README.md"):
        (copy / name).unlink()
    assert Exported.open(copy).threshold is not None


def make_everybody_live(config: dict[str, Any]) -> None:
    """Let the curves claim that no attack is accepted at a threshold that accepts everything."""
    curves = config["curves"]
    rates = len(curves["thresholds"])
    curves["thresholds"] = [-99.0 + number for number in range(rates)]
    curves["rejected"]["rates"] = [0.5] * rates
    for curve in curves["accepted"].values():
        curve["rates"] = [0.0] * rates


def remove_digests(config: dict[str, Any]) -> None:
    """Turn the description into one of an earlier version, whose curves and files are not checked."""
    config["files"] = {}
    for name in ("curves_sha256", "files_sha256"):
        del description_of(config)[name]


EDITS: dict[str, tuple[Change, str, str]] = {
    "curves of an attacker": (make_everybody_live, "config.json", "curves"),
    "no curves": (lambda config: config.pop("curves"), "config.json", "curves"),
    "one more person": (lambda config: config["curves"]["rejected"].update(people=10**6), "config.json", "curves"),
    "no files": (lambda config: config.update(files={}), "config.json", "files"),
    "no key for files": (lambda config: config.pop("files"), "config.json", "files"),
    "one file less": (lambda config: config["files"].pop("parity.json"), "config.json", "files"),
    "an earlier version": (remove_digests, GRAPH, "curves_sha256"),
    "one digest less": (lambda config: description_of(config).pop("files_sha256"), GRAPH, "files_sha256"),
    "another threshold": (lambda config: description_of(config)["threshold"].update(value=-0.99), GRAPH, "threshold"),
    "another rule": (lambda config: description_of(config)["threshold"].update(rule="bpcer=1%"), GRAPH, "threshold"),
    "wider crops": (lambda config: description_of(config)["crop"].update(margin=2.7), GRAPH, "crop"),
    "an adaptation": (
        lambda config: description_of(config).update(adapted={"from_sha256": "0" * 64, "how": "gated", "images": 9}),
        GRAPH,
        "adapted",
    ),
    "the float32 graph as int8": (lambda config: config.update(int8=config["float32"]), "config.json", "int8"),
}


@pytest.mark.parametrize("name", sorted(EDITS))
def test_edited_configuration_is_refused(copy: Path, name: str) -> None:
    change, place, keyword = EDITS[name]
    edit_config(copy, change)
    with refused(f"copy/{place}", keyword):
        Exported.open(copy)


def test_unrecorded_graph_is_never_opened(copy: Path) -> None:
    shutil.copy(copy / GRAPH, copy / "onnx/model_int8.onnx")
    digest = Exported.open(copy).graph_digest
    assert digest == hashlib.sha256((copy / GRAPH).read_bytes()).hexdigest()
    with refused("copy", "int8"):
        Exported.open(copy, int8=True)


def make_earlier_export(directory: Path) -> Path:
    """Remove the digests from configuration and graph: earlier versions wrote such exports."""
    model = onnx.load(directory / GRAPH)
    later = ("fedvisage.curves_sha256", "fedvisage.files_sha256")
    kept = [entry for entry in model.metadata_props if entry.key not in later]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    replace_graph(directory, model.SerializeToString())
    edit_config(directory, remove_digests)
    return directory


def test_export_of_an_earlier_version_opens_with_a_notice(copy: Path, pad: Path) -> None:
    expected = Exported.open(pad)
    assert expected.notices == ()
    assert not [line for line in run_command(["threshold", str(pad)]).stderr.splitlines() if line.startswith("note")]
    exported = Exported.open(make_earlier_export(copy))
    (notice,) = exported.notices
    assert str(copy) in notice
    assert "earlier version" in notice
    assert exported.threshold == expected.threshold
    done = run_command(["threshold", str(copy)])
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"note: {notice}"])


def test_recognition_of_rendered_faces_opens_with_a_notice(recognition: Path) -> None:
    exported = Exported.open(recognition)
    crops = CropRecord(how="rendered", alignment="points"), CropRecord(how="detected", alignment="points")
    for crop, count in zip(crops, (1, 0), strict=True):
        trained = replace(exported, description=exported.description.model_copy(update={"trained_on": (crop,)}))
        assert len([notice for notice in trained.notices if "rendered" in notice]) == count


def test_graph_without_metadata_is_refused(copy: Path) -> None:
    model = onnx.load(copy / GRAPH)
    del model.metadata_props[:]
    replace_graph(copy, model.SerializeToString())
    with refused("copy/onnx/model.onnx", "format", "config.json"):
        Exported.open(copy)


def constant_graph(copy: Path, kind: int, shape: list[Any], value: float) -> bytes:
    """Return a graph with the copy's metadata and the given input that returns a constant."""
    props = onnx.load(copy / GRAPH).metadata_props
    images = helper.make_tensor_value_info("images", kind, shape)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("score", "logit")]
    count = [
        helper.make_node("Shape", ["images"], ["count"], start=0, end=1),
        *(
            helper.make_node(
                "ConstantOfShape", ["count"], [name], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [value])
            )
            for name in ("score", "logit")
        ),
    ]
    graph = helper.make_graph(count, "bare", [images], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.metadata_props.extend(props)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("kind", "shape"), [(TensorProto.FLOAT, ["batch", 32, 32, 3]), (TensorProto.UINT8, ["batch", 3, 32, 32])]
)
def test_graph_with_other_inputs_is_refused(copy: Path, kind: int, shape: list[Any]) -> None:
    replace_graph(copy, constant_graph(copy, kind, shape, 0.0))
    with refused("copy/onnx/model.onnx", "inputs"):
        Exported.open(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(copy: Path, value: float) -> None:
    replace_graph(copy, constant_graph(copy, TensorProto.UINT8, ["batch", 32, 32, 3], value))
    model = Exported.open(copy)
    with pytest.raises(RunFailed, match="NaN"):
        model.run(np.zeros((1, 32, 32, 3), np.uint8))


def test_pipe_as_a_graph_is_refused(copy: Path) -> None:
    (copy / GRAPH).unlink()
    os.mkfifo(copy / GRAPH)
    with refused("copy/onnx/model.onnx", "regular file"):
        Exported.open(copy)


def test_run_directory_is_refused_as_an_export(pad_run: Path) -> None:
    with refused("pad-run/config.json", "fedvisage export"):
        Exported.open(pad_run)


@pytest.mark.parametrize("provider", ["CPU", "cpu", "CPUExecutionProvider"])
def test_provider_has_a_short_name(pad: Path, provider: str) -> None:
    assert Exported.open(pad, provider=provider).session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("provider", ["Azure", "nothing", ""])
def test_unavailable_provider_is_refused(pad: Path, provider: str) -> None:
    with refused("--provider", "CPU", "onnxruntime-gpu"):
        Exported.open(pad, provider=provider)


def test_crops_of_another_shape_raise_value_error(pad: Path) -> None:
    model = Exported.open(pad)
    with pytest.raises(ValueError, match="crops must be"):
        model.run(np.zeros((1, 3, 32, 32), np.uint8))
    assert len(model.run(np.zeros((0, 32, 32, 3), np.uint8))) == 0


def test_export_of_an_export_is_refused(pad: Path, tmp_path: Path) -> None:
    error = refusal_of("export", pad, tmp_path / "again")
    assert str(error) == f"{pad}: is already an export; give a run"

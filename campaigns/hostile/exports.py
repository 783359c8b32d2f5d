"""Hostile exported directories, through all code that opens them.

A case copies an export and changes one thing; a changed graph gets a new size and digest in the configuration. The
program must refuse a graph that names another file, has operators that no exported network has, or declares more than
it contains. Any other export that opens must consist of the files of one export, and report the digest of its graph.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from campaigns.hostile.case import Case, WronglyAccepted, pick
from campaigns.hostile.files import mutate_json, replace_file, secret_path
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper
from tests.toy import SITES, SIZE, make_set, run_toy, tree

from fedvisage.device import Exported, Pipeline
from fedvisage.device.fused import open_export
from fedvisage.runs.export.export import export
from fedvisage.runs.export.fuse import fuse
from fedvisage.starts.files import read_graph
from fedvisage.tasks.finished_model import open_model

CONFIG, GRAPHS, WEIGHTS, PARITY = (
    "config.json",
    ("onnx/model.onnx", "onnx/model_int8.onnx"),
    "model.safetensors",
    "parity.json",
)
ROUTES = ("open", "open", "pipeline", "convert")
OPERATORS = (
    *(("", name) for name in ("Loop", "Scan", "RandomNormal", "RandomUniformLike", "Bernoulli", "Multinomial")),
    *(("", name) for name in ("SequenceEmpty", "SequenceMap", "Optional", "ImageDecoder", "StringConcat", "LSTM")),
    *(("", name) for name in ("RegexFullMatch", "TfIdfVectorizer", "StringNormalizer", "Identity\x00", "identity")),
    *(("com.microsoft", name) for name in ("EPContext", "FusedConv", "Tokenizer", "BeamSearch", "PyOp", "Gelu")),
    *(("ai.onnx.ml", name) for name in ("TreeEnsemble", "LabelEncoder", "CategoryMapper")),
    *((domain, "Identity") for domain in ("com.example", "ai.onnx.training", "ai.onnx ", "\x1b[2J", "x" * 5000)),
)
NUMBERS = (10**6, 2**31, 2**32, 10**10, 2**40, 2**62, 2**63 - 1, -1, -(2**63))


class Exports:
    """Two exports of runs that differ in their seed; the first has an int8 graph, too."""

    def __init__(self, prepared: Path) -> None:
        """Train and export both, once."""
        # On noise alone, one image at the threshold changes the error rate of an int8 graph more than allowed. Here
        # every attack is a print, and training lasts until no score is near the threshold.
        sets = {
            name: make_set(prepared / name, name, seed, species=("bonafide", "print"))
            for seed, name in enumerate((*SITES, "U"))
        }
        self.own, self.other = prepared / "own", prepared / "other"
        for seed, out in enumerate((self.own, self.other)):
            run = prepared / f"run-{seed}"
            run_toy(tree(sets, training__rounds=3, training__local__batches=16, runtime__seed=seed), run)
            calibrate = str(sets["A"]) if out == self.own else None
            export(open_model(run), out, cache=prepared / "cache", calibrate=calibrate)
        self.crops = np.random.default_rng(0).integers(0, 255, (2, SIZE, SIZE, 3), dtype=np.uint8)
        for int8 in (False, True):
            Exported.open(self.own, int8=int8).run(self.crops)
        self.sum = prepared / "sum"
        fuse([self.own, self.other], self.sum, scales=[1.0, 1.0], cache=prepared / "cache")
        Pipeline(self.own)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Copy an export and change one thing."""
        mutations = (
            self._external,
            self._operator,
            self._huge,
            self._threshold,
            self._swap,
            self._damage,
            self._edit_config,
        )
        mutate = pick(draws, mutations)
        directory = place / "export"
        shutil.copytree(self.own, directory)
        int8 = draws.random() < 0.3
        return mutate(directory, GRAPHS[int8], draws)

    def _external(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Take a tensor's values from an external file."""
        (directory / "keys.txt").write_text("the key of the service")
        secret = secret_path(directory)
        location = pick(
            draws,
            (
                "keys.txt",
                "../keys.txt",
                "config.json",
                "pyproject.toml",
                "./pyproject.toml",
                str(secret),
                "",
                os.path.relpath(secret),
                os.path.relpath(secret, directory / "onnx"),
                "/etc/passwd",
                "*/_ORT_MEM_ADDR_/*",
            ),
        )
        tensor = TensorProto(name=pick(draws, ("hidden", "", "\x1b[2J")), data_type=TensorProto.UINT8, dims=[4])
        if draws.random() < 0.8:
            tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "4"))[: int(draws.integers(1, 4))]:
            tensor.external_data.add(key=key, value=value)
        where = pick(draws, HIDING)
        model = onnx.load(directory / graph)
        where(model, tensor)
        return self._refusal_case(directory, graph, model, ["external", where.__name__, repr(location)], draws)

    def _operator(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Add a node that no exported network has, or replace a node by it."""
        model, (domain, name) = onnx.load(directory / graph), pick(draws, OPERATORS)
        node = pick(draws, list(model.graph.node))
        way = pick(draws, ("replaced", "added", "in a branch"))
        if way == "replaced":
            node.op_type, node.domain = name, domain
        elif way == "added":
            model.graph.node.append(NodeProto(op_type=name, domain=domain, input=node.input, output=["extra"]))
        else:
            branch = GraphProto(name="branch", node=[NodeProto(op_type=name, domain=domain, output=["z"])])
            node.attribute.append(AttributeProto(name="then_branch", type=AttributeProto.GRAPH, g=branch))
        return self._refusal_case(directory, graph, model, ["operator", f"{domain[:20]}.{name}", way], draws)

    def _huge(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Declare more elements than the file or the memory has bytes."""
        model, way = onnx.load(directory / graph), pick(draws, sorted(HUGE))
        HUGE[way](model, [int(pick(draws, NUMBERS)) for _ in range(int(draws.integers(1, 4)))])
        route = "run" if way == "computed" else None  # the size is only known when the graph runs
        return self._refusal_case(directory, graph, model, ["huge", way], draws, route)

    def _threshold(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Change the threshold in the description, in the graph, or in both."""
        config = json.loads((directory / CONFIG).read_text())
        key = "int8" if graph == GRAPHS[1] else "float32"
        foreign = config["float32" if key == "int8" else "int8"]["description"]["threshold"]
        value = pick(draws, (-0.99, 0.0, 99.0, float(draws.normal())))
        point = foreign if draws.random() < 0.3 else {**foreign, "value": value}
        way = pick(draws, ("description", "graph", "both"))
        if way != "graph":
            config[key]["description"]["threshold"] = point
            (directory / CONFIG).write_text(json.dumps(config))
        changes = ["threshold", key, way]
        if way == "description":
            return Case(changes, partial(self._check_refusal, directory, graph, "open"))
        model = onnx.load(directory / graph)
        for entry in model.metadata_props:
            if entry.key == "fedvisage.threshold":
                entry.value = json.dumps(point, sort_keys=True)
        write_graph(directory, graph, model)
        if way == "graph":
            return Case(changes, partial(self._check_refusal, directory, graph, "open"))
        return Case(changes, partial(self._check_opened, directory, graph))

    def _swap(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Replace some files, but not all that belong together, by those of the other export."""
        names = [CONFIG, GRAPHS[0], WEIGHTS, PARITY]
        foreign = [name for name in names if draws.random() < 0.5] or [WEIGHTS]
        for name in foreign:
            shutil.copy(self.other / name, directory / name)
        check = self._check_opened if len(foreign) == len(names) else partial(self._check_refusal, route="open")
        return Case(["swapped", *foreign], partial(check, directory, GRAPHS[0]))

    def _edit_config(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Change other parts of `config.json` than descriptions: curves, files, digests, or a sum."""
        way = pick(draws, sorted(CONFIG_EDITS))
        if way.startswith("sum"):
            shutil.rmtree(directory)
            shutil.copytree(self.sum, directory)
        config, foreign = (json.loads((place / CONFIG).read_text()) for place in (directory, self.other))
        CONFIG_EDITS[way](config, foreign, draws)
        (directory / CONFIG).write_text(json.dumps(config))

        def check() -> None:
            open_export(directory)
            raise WronglyAccepted("this export was opened")

        return Case(["unstated", way], check)

    def _damage(self, directory: Path, graph: str, draws: np.random.Generator) -> Case:
        """Change the configuration or bytes of the graph, or replace a file by another object."""
        way = pick(draws, ("json", "json", "bytes", "bytes", "odd"))
        if way == "json":
            changes, text = mutate_json((directory / CONFIG).read_text(), draws)
            (directory / CONFIG).write_bytes(text.encode("utf-8", "surrogatepass"))
        elif way == "bytes":
            raw = bytearray((directory / graph).read_bytes())
            for _ in range(int(draws.integers(1, 8))):
                raw[int(draws.integers(min(len(raw), 1 << int(draws.integers(4, 24)))))] = int(draws.integers(256))
            changes = "bytes"
            write_graph(directory, graph, bytes(raw))
        else:
            changes = replace_file(directory / pick(draws, (CONFIG, graph, WEIGHTS, PARITY)), draws)
        return Case(["spoilt", way, changes], partial(self._check_opened, directory, graph), links=True)

    def _refusal_case(
        self,
        directory: Path,
        graph: str,
        model: ModelProto,
        changes: list[str],
        draws: np.random.Generator,
        route: str | None = None,
    ) -> Case:
        route = route or pick(draws, ROUTES)
        write_graph(directory, graph, model)
        return Case([*changes, route], partial(self._check_refusal, directory, graph, route))

    def _check_refusal(self, directory: Path, graph: str, route: str) -> None:
        if route == "convert":
            read_graph(directory / graph)
        else:
            exported = Exported.open(directory, int8=graph == GRAPHS[1])
            if route == "pipeline":
                Pipeline(exported)
            elif route == "run":
                exported.run(self.crops)
        raise WronglyAccepted("this export was opened")

    def _check_opened(self, directory: Path, graph: str) -> None:
        """Open an export that may be harmless, and compare it with its files."""
        exported = Exported.open(directory, int8=graph == GRAPHS[1])
        config = json.loads((directory / CONFIG).read_text())
        entry = config["int8" if graph == GRAPHS[1] else "float32"]
        content = (directory / graph).read_bytes()
        if exported.graph_digest != hashlib.sha256(content).hexdigest():
            raise WronglyAccepted("the graph that is reported is not the one that lies there")
        inside = {entry.key: entry.value for entry in onnx.load(directory / graph).metadata_props}
        threshold = entry["description"]["threshold"]
        if threshold != json.loads(inside["fedvisage.threshold"]) or exported.threshold is None:
            raise WronglyAccepted("the graph has another threshold than its description")
        for name, recorded in config.get("files", {}).items():
            path = directory / name
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != recorded["sha256"]:
                raise WronglyAccepted(f"{name} is of another export")
        if not np.isfinite(exported.run(self.crops)).all():
            raise WronglyAccepted("an export that opened returns a value that is not a number")


def _remove_digests(config: dict[str, Any]) -> None:
    """Remove the digests, as in an earlier version."""
    config["files"] = {}
    for name in ("curves_sha256", "files_sha256"):
        for key in ("float32", "int8"):
            del config[key]["description"][name]


Edit = Callable[[dict[str, Any], dict[str, Any], np.random.Generator], object]
CONFIG_EDITS: dict[str, Edit] = {
    "curves: swapped": lambda config, foreign, draws: config.update(curves=foreign["curves"]),
    "curves: none": lambda config, foreign, draws: config.pop("curves"),
    "curves: moved": lambda config, foreign, draws: config["curves"].update(
        thresholds=[value + float(draws.normal()) for value in [0.0]]
        + [100.0 + number for number in range(len(config["curves"]["thresholds"]) - 1)]
    ),
    "files: swapped": lambda config, foreign, draws: config.update(files=foreign["files"]),
    "files: none": lambda config, foreign, draws: config.update(files={}),
    "files: one": lambda config, foreign, draws: config["files"].pop(pick(draws, (WEIGHTS, PARITY))),
    "digests: none": lambda config, foreign, draws: _remove_digests(config),
    "int8: as float32": lambda config, foreign, draws: config.update(float32=config["int8"]),
    "sum: threshold": lambda config, foreign, draws: config["threshold"].update(value=float(draws.normal()) - 50),
    "sum: threshold of a member": lambda config, foreign, draws: config.update(
        threshold=foreign["float32"]["description"]["threshold"]
    ),
    "sum: rule": lambda config, foreign, draws: config["threshold"].update(rule="source-eer"),
    "sum: curves": lambda config, foreign, draws: config.update(curves=foreign["curves"]),
    "sum: weight": lambda config, foreign, draws: config["members"][0].update(weight=float(draws.random()) + 2),
}
"""Edits of `config.json` alone, given that of another export; each must be refused."""


def write_graph(directory: Path, graph: str, model: ModelProto | bytes) -> None:
    """Write a graph, and its size and digest into the configuration."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    (directory / graph).write_bytes(content)
    config = json.loads((directory / CONFIG).read_text())
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    config["int8" if graph == GRAPHS[1] else "float32"]["file"] = entry
    (directory / CONFIG).write_text(json.dumps(config))


def initialiser(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor among the weights."""
    model.graph.initializer.append(tensor)


def instead_of_weights(model: ModelProto, tensor: TensorProto) -> None:
    """Take the values of an existing weight from an external file."""
    model.graph.initializer[0].external_data.extend(tensor.external_data)
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL


def sparse_values(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor among sparse weights."""
    model.graph.sparse_initializer.append(SparseTensorProto(values=tensor, dims=[4]))


def sparse_indices(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor in the indices of sparse weights."""
    values = helper.make_tensor("values", TensorProto.FLOAT, [1], [1.0])
    model.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=tensor, dims=[4]))


def attribute(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor in a node's attribute."""
    attribute_value = AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor)
    model.graph.node.append(NodeProto(op_type="Constant", output=["extra"], attribute=[attribute_value]))


def attribute_list(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor in a list of tensors."""
    attribute_value = AttributeProto(name="extra", type=AttributeProto.TENSORS, tensors=[tensor])
    model.graph.node[0].attribute.append(attribute_value)


def subgraph(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor among the weights of a branch of a branch."""
    branch = GraphProto(name="branch", initializer=[tensor])
    for _ in range(2):
        attribute_value = AttributeProto(name="then_branch", type=AttributeProto.GRAPH, g=branch)
        node = NodeProto(op_type="If", input=["yes"], output=["extra"], attribute=[attribute_value])
        branch = GraphProto(name="branch", node=[node])
    model.graph.node.extend(branch.node)


def function(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor in a function."""
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    model.functions.append(helper.make_function("own", "read", [], ["y"], [node], [helper.make_opsetid("", 18)]))


def training_steps(model: ModelProto, tensor: TensorProto) -> None:
    """Hide a tensor in training steps."""
    model.training_info.add().algorithm.initializer.append(tensor)


HIDING = (
    *(initialiser, instead_of_weights, sparse_values, sparse_indices, attribute, attribute_list, subgraph, function),
    training_steps,
)


def _weights(model: ModelProto, dims: list[int]) -> None:
    model.graph.initializer.append(TensorProto(name="much", data_type=TensorProto.FLOAT, dims=[10**7, *dims]))


def _stretch_weight(model: ModelProto, dims: list[int]) -> None:
    model.graph.initializer[0].dims.append(10**4)


def _sparse(model: ModelProto, dims: list[int]) -> None:
    values = helper.make_tensor("much", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("where", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=dims))


def _value_info(model: ModelProto, dims: list[int]) -> None:
    shape = [2**29, abs(dims[0]) % 2**62]
    model.graph.value_info.append(helper.make_tensor_value_info("much", TensorProto.FLOAT, shape))


def _attribute(model: ModelProto, dims: list[int]) -> None:
    much = TensorProto(name="much", data_type=TensorProto.INT8, dims=[10**7, *dims])
    model.graph.node.append(helper.make_node("Constant", [], ["much"], value=much))


def _compute_size(model: ModelProto, dims: list[int]) -> None:
    """Compute the output from a tensor whose size is a constant in the graph."""
    size = helper.make_tensor("size", TensorProto.INT64, [1], [max([2**36, *dims])])
    model.graph.initializer.append(size)
    last = next(node for node in model.graph.node if "logit" in node.output)
    last.output[list(last.output).index("logit")] = "plain"
    for node in model.graph.node:
        node.input[:] = ["plain" if name == "logit" else name for name in node.input]
    model.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["much"]))
    model.graph.node.append(helper.make_node("ReduceMax", ["much"], ["most"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["plain", "most"], ["logit"]))


def _functions(model: ModelProto, dims: list[int]) -> None:
    for level in range(40):
        nodes = [helper.make_node(f"f{level + 1}", [], [name], domain="own") for name in "ab"]
        model.functions.append(helper.make_function("own", f"f{level}", [], ["a"], nodes, []))


HUGE: dict[str, Callable[[ModelProto, list[int]], Any]] = {
    "weights": _weights,
    "stretched weights": _stretch_weight,
    "sparse": _sparse,
    "declared": _value_info,
    "attribute": _attribute,
    "computed": _compute_size,
    "functions": _functions,
}

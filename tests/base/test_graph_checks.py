"""A graph that names other files, runs other operators or declares absurd sizes is refused before a session exists."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, SparseTensorProto, TensorProto, TrainingInfoProto, helper
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.base.onnx_graphs import OPERATORS, open_session
from fedvisage.starts.files import read_graph

SECRET = b"sixteen bytes ok"
REMEDY = "export the model again"


def check_refused(model: ModelProto | bytes, *keywords: str) -> None:
    """Check that no session of a graph is created, for a reason with every keyword."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    with refused("model.onnx", *keywords):
        open_session("model.onnx", content, 1, remedy=REMEDY)


def external(location: str) -> TensorProto:
    """Return a tensor whose 16 bytes lie in another file."""
    tensor = TensorProto(name="secret", data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph(node: onnx.NodeProto, *tensors: TensorProto, kind: int = TensorProto.UINT8) -> ModelProto:
    """Return a model of one node without inputs."""
    output = helper.make_tensor_value_info("y", kind, None)
    graph_proto = helper.make_graph([node], "graph", [], [output], list(tensors))
    return helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def plain() -> ModelProto:
    return graph(helper.make_node("Identity", ["x"], ["y"]), helper.make_tensor("x", TensorProto.UINT8, [1], [7]))


def in_main_graph(tensor: TensorProto) -> ModelProto:
    return graph(helper.make_node("Identity", ["secret"], ["y"]), tensor)


def with_branches(node: onnx.NodeProto, kind: int, size: int, *tensors: TensorProto) -> ModelProto:
    """Return a model that runs a node in a branch."""
    output = helper.make_tensor_value_info("z", kind, [size])
    branch = helper.make_graph([node], "branch", [], [output], list(tensors))
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    return graph(chosen, helper.make_tensor("yes", TensorProto.BOOL, [], [True]))


def in_subgraph(tensor: TensorProto) -> ModelProto:
    return with_branches(helper.make_node("Identity", ["secret"], ["z"]), TensorProto.UINT8, 16, tensor)


def in_attribute(tensor: TensorProto) -> ModelProto:
    return graph(helper.make_node("Constant", [], ["y"], value=tensor))


def in_list_of_tensors(tensor: TensorProto) -> ModelProto:
    model = plain()
    model.graph.node[0].attribute.append(AttributeProto(name="more", type=AttributeProto.TENSORS, tensors=[tensor]))
    return model


def in_list_of_graphs(tensor: TensorProto) -> ModelProto:
    model, deep = plain(), GraphProto(name="deep", initializer=[tensor])
    model.graph.node[0].attribute.append(AttributeProto(name="more", type=AttributeProto.GRAPHS, graphs=[deep]))
    return model


def in_sparse_initialiser(tensor: TensorProto) -> ModelProto:
    model = plain()
    indices = helper.make_tensor("indices", TensorProto.INT64, [16], range(16))
    model.graph.sparse_initializer.append(SparseTensorProto(values=tensor, indices=indices, dims=[16]))
    return model


def in_sparse_attribute(tensor: TensorProto) -> ModelProto:
    sparse = SparseTensorProto(values=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]), indices=tensor, dims=[16])
    return graph(helper.make_node("Constant", [], ["y"], sparse_value=sparse))


def in_function(tensor: TensorProto) -> ModelProto:
    model = plain()
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    model.functions.append(helper.make_function("own", "read", [], ["y"], [node], [helper.make_opsetid("", 18)]))
    return model


def in_training_steps(tensor: TensorProto) -> ModelProto:
    model = plain()
    model.training_info.append(TrainingInfoProto(algorithm=GraphProto(name="step", initializer=[tensor])))
    return model


PLACES = (
    *(in_main_graph, in_subgraph, in_attribute, in_list_of_tensors, in_list_of_graphs, in_sparse_initialiser),
    *(in_sparse_attribute, in_function, in_training_steps),
)


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a secret beside the working directory and in it, and go there."""
    (tmp_path / "here").mkdir()
    for place in (tmp_path, tmp_path / "here"):
        (place / "secret.txt").write_bytes(SECRET)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "secret.txt"


@pytest.mark.parametrize("location", ["secret.txt", "../secret.txt", "absolute", "*/_ORT_MEM_ADDR_/*"])
@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_in_another_file_is_refused(
    secret: Path, place: Callable[[TensorProto], ModelProto], location: str
) -> None:
    model = place(external(str(secret) if location == "absolute" else location))
    check_refused(model, "secret", "export")


def test_external_location_is_refused_without_its_marker(secret: Path) -> None:
    tensor = external("secret.txt")
    tensor.ClearField("data_location")
    check_refused(in_main_graph(tensor), "another file")


def test_a_conversion_reads_no_other_file(secret: Path) -> None:
    onnx.save(in_main_graph(external("secret.txt")), "backbone.onnx")
    with refused("backbone.onnx", "secret", "file"):
        read_graph(Path("backbone.onnx"))


def test_a_graph_with_all_its_tensors_runs() -> None:
    session = open_session("model.onnx", plain().SerializeToString(), 1, remedy=REMEDY)
    assert session.run(None, {})[0].tolist() == [7]


def test_bytes_are_read_as_the_protobuf_that_was_checked() -> None:
    """The first eight bytes are at once a field of the protobuf and the mark of ONNX Runtime's own format."""
    content = b"\x12\x06\x00\x00ORTM" + plain().SerializeToString()
    assert open_session("model.onnx", content, 1, remedy=REMEDY).run(None, {})[0].tolist() == [7]


OTHERS = {
    "a loop": helper.make_node("Loop", ["", "x"], ["y"], body=GraphProto(name="body")),
    "random numbers": helper.make_node("RandomNormal", [], ["y"], shape=[2]),
    "another domain": helper.make_node("EPContext", [], ["y"], domain="com.microsoft", ep_cache_context="/etc/passwd"),
    "a known name in another domain": helper.make_node("Identity", ["x"], ["y"], domain="com.example"),
    "a name for terminals": helper.make_node("\x1b[2J" * 100, ["x"], ["y"]),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_an_operator_outside_the_list_is_refused(name: str) -> None:
    model = graph(OTHERS[name], helper.make_tensor("x", TensorProto.BOOL, [], [True]))
    with refused("model.onnx", "operator") as refusal:
        open_session("model.onnx", model.SerializeToString(), 1, remedy=REMEDY)
    assert str(refusal.value).isprintable()


def test_an_operator_in_a_branch_is_refused() -> None:
    node = helper.make_node("RandomNormal", [], ["z"], shape=[2])
    check_refused(with_branches(node, TensorProto.FLOAT, 2), "RandomNormal")


def test_all_operators_of_the_list_exist() -> None:
    standard = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert standard >= OPERATORS


def test_functions_that_call_each_other_are_refused() -> None:
    """Each calls the next twice: 40 of them would become 2⁴⁰ nodes when they are expanded."""
    model = graph(helper.make_node("Identity", ["x"], ["y"]), helper.make_tensor("x", TensorProto.UINT8, [1], [7]))
    for level in range(40):
        nodes = [helper.make_node(f"f{level + 1}", [], [name], domain="own") for name in "ab"]
        model.functions.append(helper.make_function("own", f"f{level}", [], ["a"], nodes, []))
    with pytest.raises(UserError):
        open_session("model.onnx", model.SerializeToString(), 1, remedy=REMEDY)


@pytest.mark.parametrize("dims", [[10**10], [2**62, 4], [-1], [-1, -5], [17]])
@pytest.mark.parametrize("raw", [b"", b"1234"])
def test_a_tensor_larger_than_its_bytes_is_refused(dims: list[int], raw: bytes) -> None:
    tensor = TensorProto(name="x", data_type=TensorProto.FLOAT, dims=dims, raw_data=raw)
    check_refused(in_main_graph(tensor), "export")


def test_a_declared_shape_of_absurd_size_is_refused() -> None:
    model = plain()
    model.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["batch", 1 << 20, 1 << 20]))
    check_refused(model, "268,435,456")


def test_a_sparse_tensor_is_refused() -> None:
    """One stored value would become a dense tensor of 4 TB."""
    model = plain()
    value = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    where = helper.make_tensor("indices", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(SparseTensorProto(values=value, indices=where, dims=[10**12]))
    check_refused(model, "sparse")


def test_a_field_that_onnx_does_not_know_is_refused() -> None:
    unknown = b"\xf2\x3f\x02hi"  # field 1022, two bytes
    check_refused(plain().SerializeToString() + unknown, "onnx", "ModelProto")


def test_text_that_is_not_utf_8_is_refused() -> None:
    damaged = plain().SerializeToString().replace(b"Identity", b"Identit\xf7")
    check_refused(damaged, "UTF-8")


def test_an_error_that_onnx_runtime_cannot_show_is_one_line() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1], auto_pad=b"\xf7\xf7")
    model = graph(node, helper.make_tensor("x", TensorProto.FLOAT, [1, 1, 1, 1], [1.0]), kind=TensorProto.FLOAT)
    check_refused(model, "ONNXRuntimeError")


@pytest.mark.parametrize("content", [b"", b"\x08\x0a", b"no graph at all", np.random.default_rng(0).bytes(1000)])
def test_bytes_without_a_graph_are_refused(content: bytes) -> None:
    check_refused(content, "export")

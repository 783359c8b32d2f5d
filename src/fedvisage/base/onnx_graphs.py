"""Check ONNX graphs and create their ONNX Runtime sessions; no other module creates any.

ONNX Runtime reads files that a graph names ("external data"), converts small sparse tensors to dense ones of any size,
and expands functions that call each other. This module parses the protobuf first and refuses all of that anywhere in
the file, and every operator outside a list. The check allocates no more than the file contains.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedvisage.base.errors import UserError

if TYPE_CHECKING:
    import onnxruntime
    from onnx import ModelProto

# The check: a graph must contain all its tensors, and may only compute.


LARGEST = (2 << 30) - 1
"""Maximum bytes of a graph: the limit of protobuf, and six times the size of ViT-B in float32."""

LARGEST_VALUE = 1 << 28
"""Maximum elements of a declared input, output or intermediate value, counting each free dimension as 1."""

_PER_BYTE = 4
"""Elements per byte of the smallest ONNX types, which have two bits."""

_ELEMENTWISE = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
CastLike Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log Max
Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where Xor"""
_ACTIVATIONS = """Celu Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid
Softmax Softplus Softsign Swish ThresholdedRelu"""
_LAYERS = """Attention AveragePool BatchNormalization Conv ConvInteger ConvTranspose Dropout Einsum Gemm
GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization InstanceNormalization LRN LayerNormalization
LpNormalization LpPool MatMul MatMulInteger MaxPool MeanVarianceNormalization RMSNormalization RotaryEmbedding"""
_REDUCTIONS = """ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare TopK"""
_SHAPES = """AffineGrid CenterCropPad Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten
Gather GatherElements GatherND If NonZero OneHot Pad Range Reshape Resize ScatterElements ScatterND Shape Size Slice
SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Upsample"""
_QUANTISATION = "DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul QuantizeLinear"

OPERATORS = frozenset(" ".join((_ELEMENTWISE, _ACTIVATIONS, _LAYERS, _REDUCTIONS, _SHAPES, _QUANTISATION)).split())
"""Operators of the standard domain that image networks need, from our exporter, torch's older one, timm and int8.

The list excludes loops, which may not end; sequences, strings and image decoders, which no exported network has; random
numbers, because a graph must repeat its answers; and every operator of another domain.
"""

_STANDARD = ("", "ai.onnx")


def parse_graph(place: str, content: bytes, remedy: str) -> ModelProto:
    """Parse an ONNX graph; refuse external data, operators outside the list, and absurd sizes."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    if len(content) > LARGEST:
        raise UserError(place, f"has {len(content):,} bytes; the limit for a graph is {LARGEST:,}; {remedy}")
    try:
        model: ModelProto = ModelProto.FromString(content)
    except DecodeError:
        raise UserError(place, f"is not a valid ONNX graph; {remedy}") from None
    messages = list(_messages(model))
    # Check external data first: it is the sign of an attack on files, so no other fault may hide it.
    for fault in (_find_external, _find_unknown, _find_undecodable, _find_forbidden, _find_oversized):
        for message in messages:
            if (reason := fault(message)) is not None:
                raise UserError(place, f"{reason}; {remedy}")
    return model


def _messages(model: Any) -> Iterator[Any]:
    """Yield a message and everything inside it, including subgraphs, attributes, functions and training steps."""
    from google.protobuf.message import Message

    stack = [model]
    while stack:
        message = stack.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                stack.extend([value] if isinstance(value, Message) else value)


def _find_external(message: Any) -> str | None:
    """Report a tensor whose values are in another file, or in memory, which ONNX Runtime addresses in the same way."""
    from onnx import TensorProto

    if isinstance(message, TensorProto) and (message.external_data or message.data_location != TensorProto.DEFAULT):
        return (
            f"loads the values of {_escape_name(message.name)} from another file; a graph must contain all its tensors"
        )
    return None


def _find_unknown(message: Any) -> str | None:
    """Report fields that the installed onnx does not know: a newer ONNX Runtime may know them and act on them."""
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    if len(UnknownFieldSet(message)):
        return f"contains fields in {type(message).__name__} that are unknown to the installed onnx package"
    return None


def _find_undecodable(message: Any) -> str | None:
    """Report texts that are not UTF-8: protobuf passes them on as bytes, and ONNX Runtime fails when it prints them."""
    for field, value in message.ListFields():
        texts = [value] if isinstance(value, str | bytes) else value
        if field.type == field.TYPE_STRING and any(isinstance(text, bytes) for text in texts):
            return f"contains text in {type(message).__name__} that is not UTF-8"
    return None


def _find_forbidden(message: Any) -> str | None:
    """Report operators outside the list, and parts that ONNX Runtime expands when it loads a graph."""
    from onnx import FunctionProto, NodeProto, SparseTensorProto, TrainingInfoProto

    if isinstance(message, NodeProto) and (message.domain not in _STANDARD or message.op_type not in OPERATORS):
        name = f"{message.domain}.{message.op_type}" if message.domain else message.op_type
        return f"uses the operator {_escape_name(name)}, which is not on the allowlist"
    if isinstance(message, SparseTensorProto):
        return "contains a sparse tensor; exported networks never do"
    if isinstance(message, FunctionProto | TrainingInfoProto):
        return "defines functions or training steps; exported networks never do"
    return None


def _find_oversized(message: Any) -> str | None:
    """Report a tensor that declares more elements than its bytes can hold, or a value of an absurd shape."""
    from onnx import TensorProto, TypeProto

    if isinstance(message, TensorProto):
        negative = min(message.dims, default=0) < 0
        if negative or math.prod(message.dims) > _PER_BYTE * message.ByteSize():
            return f"declares a larger {_escape_name(message.name)} than it contains"
    if isinstance(message, TypeProto.Tensor):
        elements = math.prod(max(size.dim_value, 1) for size in message.shape.dim)
        if elements > LARGEST_VALUE:
            return f"declares a value of more than {LARGEST_VALUE:,} elements"
    return None


def _escape_name(name: str) -> str:
    """Return a name from an untrusted file, shortened and escaped for the terminal."""
    return repr(name[:80])


CPU = "CPU"
_PROVIDER = "ExecutionProvider"


def open_session(
    place: str, content: bytes, threads: int, *, remedy: str, deterministic: bool = False, provider: str = CPU
) -> onnxruntime.InferenceSession:
    """Check a graph and create its session; the same bytes give the same numbers on one type of processor.

    ``provider`` is the execution provider; the CPU runs the operators that it does not have.
    """
    import onnxruntime

    chosen = find_provider(provider)
    parse_graph(place, content, remedy)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.use_deterministic_compute = deterministic
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Without this entry, ONNX Runtime would read bytes that begin like its own format as that format, unchecked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # The check refuses external tensors. As a second defence, their folder is set to a path that contains no files.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        providers = list(dict.fromkeys((chosen, f"{CPU}{_PROVIDER}")))
        session = onnxruntime.InferenceSession(content, options, providers=providers)
    except runtime_errors() as error:
        raise UserError(place, f"cannot be run ({short(error)}); {remedy}") from None
    if session.get_providers()[0] != chosen:  # ONNX Runtime continues on the CPU
        raise UserError("--provider", f"{provider} cannot be started here; check its driver and libraries")
    return session


def find_provider(name: str) -> str:
    """Return ONNX Runtime's name of an execution provider, such as CUDA; refuse one that is not installed."""
    import onnxruntime

    # Azure's would send data to another machine.
    available: list[str] = [each for each in onnxruntime.get_available_providers() if not each.startswith("Azure")]
    choice = {each.removesuffix(_PROVIDER).lower(): each for each in available}
    key = name.lower().removesuffix(_PROVIDER.lower())
    if key not in choice:
        names = ", ".join(each.removesuffix(_PROVIDER) for each in available)
        others = "Others need another onnxruntime package, such as onnxruntime-gpu"
        raise UserError("--provider", f"{name} is not available; available: {names}. {others}")
    return choice[key]


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that ONNX Runtime raises when it cannot load or run a graph."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.EPFail,
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoModel,
        state.NotImplemented,
        state.RuntimeException,
        MemoryError,
        UnicodeDecodeError,
    )


def short(error: Exception) -> str:
    """Return an error's message on one line, shortened."""
    return " ".join(str(error).split())[:200]

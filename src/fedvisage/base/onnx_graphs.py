"""The one place that creates sessions of ONNX Runtime, from the bytes of a graph and after its check."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedvisage.base.errors import UserError

if TYPE_CHECKING:
    from onnx import ModelProto
if TYPE_CHECKING:
    import onnxruntime

# The check of an ONNX graph: it must hold all its tensors, and may only compute.
#
# ONNX Runtime reads files that a graph names ("external data"), converts small sparse tensors to dense ones of any
# size,
# and expands functions that call each other. This module parses the protobuf first and refuses all of that, wherever
# in
# the file it stands, and every operator outside a list. It allocates nothing that the file does not hold.


LARGEST = (2 << 30) - 1
"""Bytes of a graph: protobuf reads no more, and ViT-B in float32 has a sixth of it."""

LARGEST_VALUE = 1 << 28
"""Elements of a declared input, output or intermediate value, without its free sizes."""

_PER_BYTE = 4
"""Elements that a byte can hold: the smallest types of ONNX have two bits."""

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

Left out are loops, which may not end; sequences, strings and decoders of pictures, which no exported network has;
random numbers, because a graph must repeat its answers; and every operator of another domain.
"""

_STANDARD = ("", "ai.onnx")


def parse_graph(place: str, content: bytes, remedy: str) -> ModelProto:
    """Parse an ONNX graph; refuse one that names other files, runs other operators or declares absurd sizes."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    if len(content) > LARGEST:
        raise UserError(place, f"has {len(content):,} bytes; no graph has more than {LARGEST:,}; {remedy}")
    try:
        model: ModelProto = ModelProto.FromString(content)
    except DecodeError:
        raise UserError(place, f"is not a whole ONNX graph; {remedy}") from None
    messages = list(_messages(model))
    # External data first: it is what an attack on files looks like, so no other fault may hide it.
    for fault in (_external, _unknown, _undecodable, _forbidden, _oversized):
        for message in messages:
            if (reason := fault(message)) is not None:
                raise UserError(place, f"{reason}; {remedy}")
    return model


def _messages(model: Any) -> Iterator[Any]:
    """Yield a message and all that it contains: subgraphs, attributes, functions and training steps included."""
    from google.protobuf.message import Message

    stack = [model]
    while stack:
        message = stack.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                stack.extend([value] if isinstance(value, Message) else value)


def _external(message: Any) -> str | None:
    """Name a tensor whose values lie in another file, or in memory, which ONNX Runtime addresses the same way."""
    from onnx import TensorProto

    if isinstance(message, TensorProto) and (message.external_data or message.data_location != TensorProto.DEFAULT):
        return f"takes the values of {_shown(message.name)} from another file; a graph must hold all its tensors"
    return None


def _unknown(message: Any) -> str | None:
    """Refuse fields that are unknown here: a newer ONNX Runtime may know them and act on them."""
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    if len(UnknownFieldSet(message)):
        return f"has fields in {type(message).__name__} that the installed package onnx does not know"
    return None


def _undecodable(message: Any) -> str | None:
    """Refuse texts that are not UTF-8: protobuf passes them on as bytes, and ONNX Runtime fails where it shows them."""
    for field, value in message.ListFields():
        texts = [value] if isinstance(value, str | bytes) else value
        if field.type == field.TYPE_STRING and any(isinstance(text, bytes) for text in texts):
            return f"has text in {type(message).__name__} that is not UTF-8"
    return None


def _forbidden(message: Any) -> str | None:
    """Refuse operators outside the list, and what ONNX Runtime expands when it loads a graph."""
    from onnx import FunctionProto, NodeProto, SparseTensorProto, TrainingInfoProto

    if isinstance(message, NodeProto) and (message.domain not in _STANDARD or message.op_type not in OPERATORS):
        name = f"{message.domain}.{message.op_type}" if message.domain else message.op_type
        return f"uses the operator {_shown(name)}, which is not on the list of allowed ones"
    if isinstance(message, SparseTensorProto):
        return "has a sparse tensor, which no exported network has"
    if isinstance(message, FunctionProto | TrainingInfoProto):
        return "has functions or training steps of its own, which no exported network has"
    return None


def _oversized(message: Any) -> str | None:
    """Refuse a tensor that declares more elements than its bytes can hold, and a value of an absurd shape."""
    from onnx import TensorProto, TypeProto

    if isinstance(message, TensorProto):
        negative = min(message.dims, default=0) < 0
        if negative or math.prod(message.dims) > _PER_BYTE * message.ByteSize():
            return f"declares a larger {_shown(message.name)} than it holds"
    if isinstance(message, TypeProto.Tensor):
        elements = math.prod(max(size.dim_value, 1) for size in message.shape.dim)
        if elements > LARGEST_VALUE:
            return f"declares a value of more than {LARGEST_VALUE:,} elements"
    return None


def _shown(name: str) -> str:
    """Return a name from a stranger's file so that it is short and acts on no terminal."""
    return repr(name[:80])


def open_session(
    place: str, content: bytes, threads: int, *, remedy: str, deterministic: bool = False
) -> onnxruntime.InferenceSession:
    """Check a graph and make it ready; the same bytes give the same numbers on one kind of processor."""
    import onnxruntime

    parse_graph(place, content, remedy)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.use_deterministic_compute = deterministic
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Without this entry, bytes that begin like ONNX Runtime's own format are not read as the protobuf that was checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # The check refuses tensors in other files; a second line of defence looks for them where no file can be.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except runtime_errors() as error:
        raise UserError(place, f"is no graph that can be run ({short(error)}); {remedy}") from None


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises when it cannot load or run a graph."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (state.EPFail, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf,
            state.NoModel, state.NotImplemented, state.RuntimeException, MemoryError, UnicodeDecodeError)  # fmt: skip


def short(error: Exception) -> str:
    """Return an error's words on one line, shortened."""
    return " ".join(str(error).split())[:200]

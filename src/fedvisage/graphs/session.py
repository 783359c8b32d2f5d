"""The one place that creates sessions of ONNX Runtime, from the bytes of a graph and after its check."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fedvisage.errors import UserError
from fedvisage.graphs.checks import parse_graph

if TYPE_CHECKING:
    import onnxruntime


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

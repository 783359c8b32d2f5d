"""Export of finished models as ONNX graphs that run without torch."""

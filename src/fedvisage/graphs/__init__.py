"""ONNX graphs from anywhere: checked, and only then loaded by ONNX Runtime."""

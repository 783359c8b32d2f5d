"""Trackers that receive the figures of a run: TensorBoard, MLflow, Weights & Biases."""

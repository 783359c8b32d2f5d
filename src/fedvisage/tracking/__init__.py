"""Telling trackers, such as TensorBoard, MLflow and Weights & Biases, the figures of a run."""

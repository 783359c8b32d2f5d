"""Faces in pictures, with five points: the cascade of Zhang et al. (MTCNN, 2016) on ONNX Runtime."""

from fedvisage.faces.detection.cascade import Detector
from fedvisage.faces.detection.face import Face
from fedvisage.faces.detection.nets import NAME, VERSION, digest

__all__ = ["NAME", "VERSION", "Detector", "Face", "digest"]

"""Pooled ("All"): one model trained on the merged data of all data centres (last rows of FedPAD's Table III).

It violates what a federation is for, and shows what that costs. The sites' data become one pseudo-site on which FedPAD
runs with one participant: a simulation only, refused between real organisations.

Deviations from the paper: none known.
"""

from dataclasses import replace

from fedvisage.methods.models.resnet18 import DetectorOptions
from fedvisage.methods.pad import fedpad

METHOD = replace(
    fedpad.METHOD, name="pooled", title="All", options=DetectorOptions, pooled=True, server_sees="everything"
)

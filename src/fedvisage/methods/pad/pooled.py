"""Pooled ("All"): one model trained on the merged data of all data centres (last rows of FedPAD's Table III).

Merging the data defeats the purpose of a federation; this method measures the cost of federating. The sites' data
become one pseudo-site on which FedPAD runs with one participant. It is a simulation only, and is refused between
organisations.

Deviations from the paper: none known.
"""

from dataclasses import replace

from fedvisage.methods.models.resnet18 import DetectorOptions
from fedvisage.methods.pad import fedpad

METHOD = replace(fedpad.METHOD, name="pooled", title="All", options=DetectorOptions, members="pooled")

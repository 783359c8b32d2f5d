"""Fused: the mean score of the models that each data centre trained alone (FedPAD's Table III).

Training is that of ``single``; every target downloads all members and averages their probabilities.

Deviations from the paper: it does not specify which scores are averaged; here they are the probabilities of being live.
"""

from dataclasses import replace

from fedvisage.methods.pad import single

METHOD = replace(single.METHOD, name="fused", title="Fused", members="mean")

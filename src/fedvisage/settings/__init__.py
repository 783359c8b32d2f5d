"""The sections of a recipe: frozen, validated, with defaults. Unknown keys are errors."""

from fedvisage.settings.data import SITE_NAME, Data, Input, many_names, many_sites
from fedvisage.settings.evaluation import ADAPTATIONS, Adapt, Evaluation, Recognition
from fedvisage.settings.federation import Federation
from fedvisage.settings.protection import Combine, Dp, Poisoned, Secure
from fedvisage.settings.runtime import Privacy, Runtime
from fedvisage.settings.section import MethodOptions, Section
from fedvisage.settings.training import Augment, Batch, EarlyStop, Local, Optimizer, Pretrain, Schedule, Training

__all__ = [
    "ADAPTATIONS",
    "SITE_NAME",
    "Adapt",
    "Augment",
    "Batch",
    "Combine",
    "Data",
    "Dp",
    "EarlyStop",
    "Evaluation",
    "Federation",
    "Input",
    "Local",
    "MethodOptions",
    "Optimizer",
    "Poisoned",
    "Pretrain",
    "Privacy",
    "Recognition",
    "Runtime",
    "Schedule",
    "Section",
    "Secure",
    "Training",
    "many_names",
    "many_sites",
]

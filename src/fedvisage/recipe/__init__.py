"""Recipes, the description of runs: frozen and validated sections; unknown keys are errors that name their place."""

from fedvisage.recipe.data import SITE_NAME, Data, Input, expand_names, expand_sites
from fedvisage.recipe.evaluation import ADAPTATIONS, Adapt, Evaluation, Recognition
from fedvisage.recipe.federation import Combine, Dp, Federation, HostileSites, Secure
from fedvisage.recipe.mistakes import read_section
from fedvisage.recipe.recipe import Recipe
from fedvisage.recipe.runtime import Privacy, Report, Runtime, Tracking
from fedvisage.recipe.section import MethodOptions, Section
from fedvisage.recipe.text import (
    apply_override,
    load,
    present_text,
    read_tree,
    read_with_overrides,
    set_value,
    text_of,
    tree_of,
    validate,
)
from fedvisage.recipe.training import (
    Augment,
    Batch,
    Change,
    EarlyStop,
    Local,
    Optimizer,
    Pretrain,
    Schedule,
    ServerOptimizer,
    Start,
    Training,
)

__all__ = [
    "ADAPTATIONS",
    "SITE_NAME",
    "Adapt",
    "Augment",
    "Batch",
    "Change",
    "Combine",
    "Data",
    "Dp",
    "EarlyStop",
    "Evaluation",
    "Federation",
    "HostileSites",
    "Input",
    "Local",
    "MethodOptions",
    "Optimizer",
    "Pretrain",
    "Privacy",
    "Recipe",
    "Recognition",
    "Report",
    "Runtime",
    "Schedule",
    "Section",
    "Secure",
    "ServerOptimizer",
    "Start",
    "Tracking",
    "Training",
    "apply_override",
    "expand_names",
    "expand_sites",
    "load",
    "present_text",
    "read_section",
    "read_tree",
    "read_with_overrides",
    "set_value",
    "text_of",
    "tree_of",
    "validate",
]

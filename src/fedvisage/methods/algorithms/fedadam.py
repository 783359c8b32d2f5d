"""FedAdam and FedYogi: the server takes an adaptive step towards the mean instead of adopting the mean.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2. Sites train as in FedAvg. Δ_t, the mean minus the lent weights, serves as a
gradient, and ``training.server_optimizer`` sets the rate, the moments and τ of the step. With SGD at rate 1 and no
momentum instead, this is FedAvg.

Deviations from the paper: sites count according to ``weight`` (the paper: by their examples); values without a
gradient, such as BatchNorm's running statistics, are averaged. The default rate of 10⁻² is one of those that the paper
tries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.federation.server import Server
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Model
from fedvisage.recipe import Recipe, ServerOptimizer

PAPER = "Reddi et al., Adaptive Federated Optimization, 2021"


def adaptive(model: Model, kind: Literal["adam", "yogi"], title: str, advice: str) -> Method:
    """Return averaging of a model with one of the adaptive steps."""
    name = f"fed{kind}"

    def server(s: Server) -> Iterator[None]:
        yield from fedavg.server(s, default_optimizer=ServerOptimizer.model_validate({"name": kind}))

    def check(recipe: Recipe) -> None:
        optimizer = recipe.training.server_optimizer
        if optimizer is not None and optimizer.name != kind:
            raise UserError(
                "recipe.training.server_optimizer.name", f"{name} requires {kind}; set it, or use fedavg or fedpad"
            )

    return fedavg.on_model(
        model,
        fedavg.options_on(model),
        name=name,
        title=title,
        paper=PAPER,
        advice=advice,
        server=server,
        supports=fedavg.WITHOUT_STATE,
        check=check,
    )


def fedadam(model: Model) -> Method:
    """Return FedAdam on a model."""
    advice = "When plain averaging learns slowly or unsteadily: the server takes Adam steps; tune the server's rate."
    return adaptive(model, "adam", "FedAdam", advice)


def fedyogi(model: Model) -> Method:
    """Return FedYogi on a model: v moves towards Δ² by a bounded step."""
    advice = "As fedadam with Yogi's second moment, which changes more gradually."
    return adaptive(model, "yogi", "FedYogi", advice)

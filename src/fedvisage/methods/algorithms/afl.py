"""AFL: agnostic federated learning, which optimises the worst mixture of sites instead of their mean.

M. Mohri, G. Sivek, A. T. Suresh, "Agnostic Federated Learning", ICML 2019, algorithm Stochastic-AFL. The server keeps a
mixture λ over the sites. Weights descend on the mixture's loss Σ λₖ Lₖ(w); λ ascends on it, along the sites' losses,
and is projected back onto the simplex. With a step of 0, λ stays uniform and this is FedAvg.

Deviations from the paper: sites train locally, as in FedAvg, and λ weights the mean of their models; with
``local: {batches: 1}`` and SGD that is the paper's step. The gradient with respect to λₖ is Lₖ at the lent weights;
here it is the mean training loss of the site's local work, which is uploaded anyway. With one local batch that is the
paper's stochastic estimate; with more it also includes what the site has learnt meanwhile. A site that does not reply
keeps its λ, and the other sites redistribute theirs. The step of 0.1 is a choice. The server trusts the reported
losses: a site that overstates its loss gains weight in the mixture.
"""

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import Method
from fedvisage.federation.server import Server
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Model
from fedvisage.recipe import MethodOptions

MIXTURE = "mixture"
"""Key of λ in the server's private state; its values are in the order of the sites' names."""

LEAST = 1e-12
"""Weight of a site with λ = 0, relative to the largest; it vanishes in float32 unless only such sites reply."""


class MixtureOptions(MethodOptions):
    """The step size of λ along the sites' losses in a round."""

    step: float = Field(0.1, ge=0)
    """Step size of the mixture of sites along their losses in a round; 0 is FedAvg."""


def server(s: Server) -> Iterator[None]:
    """Descend in the weights under the current mixture, then ascend in the mixture."""
    options = s.recipe.options(MixtureOptions)
    for _ in s.rounds():
        with s.quorum():
            mixture = stored_weights(s, MIXTURE)
            reduced = s.reduce("train", s.lent(), weight=relative_weights(mixture))
            s.load(reduced.value)
            if options.step:
                store_weights(s, MIXTURE, ascend(mixture, reduced.losses, options.step))
        yield


def stored_weights(s: Server, key: str) -> dict[str, float]:
    """Return the weights of sites that the server has under a key; they start uniform."""
    uniform = torch.full((len(s.names),), 1 / len(s.names), dtype=torch.float64)
    return dict(zip(s.names, s.kept.get(key, uniform).tolist(), strict=True))


def store_weights(s: Server, key: str, weights: Mapping[str, float]) -> None:
    """Store weights of sites in the state of the server, in the order of their names."""
    s.kept[key] = torch.tensor([weights[name] for name in s.names], dtype=torch.float64)


def relative_weights(mixture: Mapping[str, float]) -> dict[str, float]:
    """Return weights for a mean that divides by their sum: λ relative to the largest, so that equal sites weigh 1."""
    largest = max(mixture.values())
    return {name: max(share / largest, LEAST) for name, share in mixture.items()}


def ascend(mixture: Mapping[str, float], losses: Mapping[str, float], step: float) -> dict[str, float]:
    """Raise λ along the losses of the sites that replied, and project; the sum over these sites stays the same."""
    names = sorted(losses)
    present = torch.tensor([mixture[name] for name in names], dtype=torch.float64)
    raised = present + step * torch.tensor([losses[name] for name in names], dtype=torch.float64)
    return {**mixture, **dict(zip(names, project(raised, float(present.sum())).tolist(), strict=True))}


def project(point: Tensor, total: float = 1.0) -> Tensor:
    """Return the nearest point with non-negative coordinates and this sum.

    J. Duchi, S. Shalev-Shwartz, Y. Singer, T. Chandra, "Efficient Projections onto the l1-Ball for Learning in High
    Dimensions", ICML 2008, Fig. 1. Its threshold θ = (Σ_{i≤ρ} µᵢ − z)/ρ is the largest of these quotients over all ρ.
    """
    falling = point.sort(descending=True).values
    counts = torch.arange(1, len(point) + 1, dtype=point.dtype)
    threshold = ((falling.cumsum(0) - total) / counts).max()
    return (point - threshold).clamp_min(0)


def afl(model: Model) -> Method:
    """Return AFL on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model, MixtureOptions, weighs=False, last=True),
        name="afl",
        title="AFL",
        paper="Mohri et al., Agnostic Federated Learning, 2019",
        advice="When no site may be left behind: optimises the worst mixture of sites instead of their mean.",
        server=server,
        supports=frozenset({"micro_batch"}),
    )

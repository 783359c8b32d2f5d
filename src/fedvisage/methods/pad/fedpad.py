"""FedPAD: federated face presentation attack detection.

R. Shao, P. Perera, P. C. Yuen, V. M. Patel, "Federated Generalized Face Presentation Attack Detection", 2022, §III-A
and Algorithm 1. Data centres train a ResNet-18 on six channels (RGB and HSV) with binary cross-entropy (Eq. 1); after
some local epochs the server takes the uniform mean of all weights (Eq. 2, 3) and sends it back. Targets download the
result and only run inference.

Deviations from the paper: Eq. 1 is printed without its minus sign; it is minimised with it. The number of local epochs
(3) comes from the authors' later paper on test-time adaptation. BatchNorm statistics are averaged with the weights.
"""

from collections.abc import Iterator
from dataclasses import replace

from fedvisage.federation.server import Server
from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.models import resnet18

PAPER = "Shao et al., Federated Generalized Face Presentation Attack Detection, 2022"

METHOD = replace(
    fedavg(resnet18.MODEL),
    name="fedpad",
    title="FedPAD",
    paper=PAPER,
    advice="Start here: FedAvg on a ResNet-18; small, takes secure aggregation and differential privacy.",
    options=resnet18.Options,
)
TRAIN = METHOD.calls["train"]


def train_alone(s: Server) -> Iterator[None]:
    """Continue each site's own model in every round."""
    for _ in s.rounds():
        with s.quorum():
            for name, reply in s.ask("train", each={name: s.member(name) for name in s.present}).items():
                s.keep_member(name, reply)
        yield


SINGLE = replace(
    METHOD,
    name="single",
    title="Single",
    advice="Each site alone, evaluated singly: what a federation should beat.",
    options=resnet18.DetectorOptions,
    server=train_alone,
    members="each",
    supports=frozenset({"micro_batch"}),
)
"""Single: each data centre trains alone, and its model is evaluated on the target (first rows of FedPAD's Table III).

The baseline for the benefit of a federation. All sites train in one run with the rounds and local work of the recipe,
so a site sees exactly as many batches as under FedPAD. No weights of one site reach another, except under ``fused``,
where they reach every target. Results are reported for each member and as their mean, with each member's threshold from
its own site.

Deviations from the paper: none known; the paper does not specify how long the single models were trained.
"""

FUSED = replace(
    SINGLE,
    name="fused",
    title="Fused",
    advice="Each site alone, with averaged scores: what sites reach without a common model.",
    members="mean",
)
"""Fused: the mean score of the models that each data centre trained alone (FedPAD's Table III).

Training is that of ``single``; every target downloads all members and averages their probabilities.

Deviations from the paper: it does not specify which scores are averaged; here they are the probabilities of being live.
"""

POOLED = replace(
    METHOD,
    name="pooled",
    title="All",
    advice="Simulation only: fedpad's network on all data in one place: what federating costs.",
    options=resnet18.DetectorOptions,
    members="pooled",
)
"""Pooled ("All"): one model trained on the merged data of all data centres (last rows of FedPAD's Table III).

Merging the data defeats the purpose of a federation; this method measures the cost of federating. The sites' data
become one pseudo-site on which FedPAD runs with one participant. It is a simulation only, and is refused between
organisations.

Deviations from the paper: none known.
"""

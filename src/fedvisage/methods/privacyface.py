"""PrivacyFace: recognition in which sites tell each other where their people's class centres lie, with noise on it.

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022, Algorithm 2. At the start of a round each site finds clusters of its class centres W and releases
them under differential privacy (line 3, Algorithm 1); the server hands all of them to all sites (line 4). A site then
trains with a margin loss in which the others' clusters are negatives (line 7, Eq. 5), fine-tunes on some public people
("Training"), and the server takes the uniform mean of the models (line 9). ``clustering: private``, the default, is a
mechanism whose claim holds end to end; ``paper`` is Algorithm 1 to the letter, see :mod:`fedvisage.privacy.clustering`.

Deviations from the paper: W begins as the mean features of each identity, for a random W has no clusters; δ of the
private mechanism is a setting, because 1/|D|^1.1 would tell the number of a site's people; the loss is the mean over a
batch; scale and margin, which are not printed, are those of ArcFace's and CosFace's papers; FedSGD (A.2.1) sends the
model after one step down the mean gradient, whose mean over sites is one step down the mean of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.wire.upload import COST
from fedvisage.methods.clusters import Options, cluster, prices
from fedvisage.methods.consensus import (
    CLUSTERS,
    PAPER,
    TRAIN,
    ConsensusOptions,
    cluster_shape,
    crowded,
    least_identities,
)
from fedvisage.methods.models import face
from fedvisage.privacy.accountant import BudgetSpent


def server(s: Server) -> Iterator[None]:
    """Algorithm 2; where a site's budget does not allow another release, the run ends with the model that there is.

    A budget that does not allow the first one is refused: nothing would have been trained.
    """
    options = s.recipe.options(ConsensusOptions)
    for _ in s.rounds():
        try:
            with s.quorum():
                told = {f"{CLUSTERS}/{name}": reply[CLUSTERS] for name, reply in s.ask("cluster", s.lent()).items()}
                s.load(s.reduce("train", told, weight=options.weight).value)
        except BudgetSpent as spent:
            if s.round == 1:
                raise
            s.end_before_this_round(str(spent))
            return
        yield


METHOD = Method(
    name="privacyface",
    title="PrivacyFace",
    paper=PAPER,
    task="recognition",
    options=Options,
    network=face.network,
    home={"model": Home.LENT},
    calls={
        "cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=cluster_shape), COST)),
        "train": TRAIN,
    },
    server=server,
    user=face.user,
    check=face.check,
    begin=face.begin,
    features=face.user,
    personal=face.LOCALLY,
    least_identities=least_identities,
    prices=prices,
    warning=crowded,
)

"""Pre-trained only: the model of the public set without any training at sites (first row of FedFR's Table 1).

The baseline for the benefit of a federation; sites only evaluate the model.

Deviations from the paper: none known.
"""

from collections.abc import Iterator

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Home, Method, Prediction
from fedvisage.federation.server import Server
from fedvisage.methods.models import face


def server(s: Server) -> Iterator[None]:
    """Run the rounds without training; the model stays unchanged."""
    if s.recipe.training.pretrain is None and s.recipe.training.start is None:
        raise UserError(
            "recipe.training.pretrain", "is required by this method; set its epochs, or give training.start"
        )
    for _ in s.rounds():
        yield


METHOD = Method(
    name="pretrained",
    title="Pre-trained",
    paper=face.PAPER,
    task="recognition",
    options=face.FaceOptions,
    network=face.network,
    home={"model": Home.LENT},
    calls={},
    server=server,
    prediction=Prediction(face.predict, features=face.predict),
    check=face.check,
    begin=face.begin,
    server_sees="figures of the sites' own people",
)

"""FedFace: sites with one identity each send their class centres, and the server pushes the centres apart.

D. Aggarwal, J. Zhou, A. K. Jain, "FedFace: Collaborative Learning of Face Recognition Model", IJCB 2021. A site's class
centre starts as the mean feature of its images; the site pulls features towards it by the positive loss max(0, m − cos
θ)², and sends backbone and centre. The server averages backbones, takes one step down λ times the spreadout regulariser
of all centres (F. X. Yu et al., ICML 2020), and returns the centres to their sites. Class centres represent people:
anyone who receives one can try to reconstruct a face, which is why FedFR and PrivacyFace keep theirs at the sites.

Sites with several identities use CosFace instead of the positive loss, as in FedFR's comparison (Fig. 4). ``sampled``
limits the number of centres per site in the regulariser; λ and v are named as in PrivacyFace (A.2.5).

Deviations from the paper: the distance of the regulariser is the cosine distance, over pairs of different sites that
trained in the round; its step has the sites' learning rate. The descriptions in FedFR and PrivacyFace, which this file
follows, settle none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import face
from fedvisage.nn import optimizers
from fedvisage.nn.losses.spreadout import positive_hinge, spreadout
from fedvisage.recipe import Recipe, Section

MOST_CENTRES = 16384
"""Default number of centres of all sites in the regulariser: it compares all pairs, and a site can send any number."""


class Spreadout(Section):
    """The weight λ and the margin v of the regulariser, and the number of centres per site in it."""

    weight: float = Field(10.0, ge=0)
    """Weight λ of the regulariser."""
    margin: float = Field(0.9, gt=0, le=2)
    """Margin v of the regulariser."""
    sampled: int | None = Field(None, ge=1)
    """Number of centres per site in the regulariser; by default all, or equal shares of 16,384 if there are more."""


class Options(face.CosFaceOptions):
    """CosFace's options, the margin of the positive loss, and the regulariser."""

    positive_margin: float = Field(0.9, gt=0, le=1)
    """The margin m of the positive loss."""
    spreadout: Spreadout = Spreadout()
    """The regulariser that pushes centres apart."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the positive loss for one identity, or CosFace for several."""
    features = face.features_of(site, batch.images)
    if len(site.data.identities) > 1:
        return face.supervise(site, batch, features)
    assert batch.identities is not None
    margin = site.recipe.options(Options).positive_margin
    return positive_hinge(features, face.own_centres(site), batch.identities, margin=margin)


def send_centres(site: Site, message: Message) -> Message:
    """Send the class centres to the server."""
    return {"centres": face.own_centres(site)}


def take_centres(site: Site, message: Message) -> Message:
    """Replace the class centres by those that the server moved."""
    with torch.no_grad():
        face.own_centres(site).copy_(message["centres"])
    return {}


def program(settings: Callable[[Recipe], Spreadout]) -> Callable[[Server], Iterator[None]]:
    """Return the server program: average backbones, then spread out the centres of the sites that trained."""

    def server(s: Server) -> Iterator[None]:
        options, weight = settings(s.recipe), fedavg.weight_of(s.recipe)
        for _ in s.rounds():
            with s.quorum():
                trained = s.reduce("train", s.lent(), weight=weight)
                centres = {name: reply["centres"] for name, reply in s.ask("centres", to=trained.replied).items()}
                spread_out = {name: {"centres": value} for name, value in spread_centres(s, centres, options).items()}
                s.ask("take", each=spread_out, to=tuple(spread_out))
                s.load(trained.value)
            yield

    return server


def spread_centres(s: Server, centres: Mapping[str, Tensor], options: Spreadout) -> dict[str, Tensor]:
    """Take one step down the regulariser, over the sampled number of centres per site."""
    training, wanted, total = s.recipe.training, options.sampled, sum(map(len, centres.values()))
    if wanted is None:
        wanted = total if total <= MOST_CENTRES else max(1, MOST_CENTRES // len(centres))
    sampled_rows = {name: _sample_centres(s, name, len(value), wanted) for name, value in centres.items()}
    stacked = torch.cat([centres[name][rows] for name, rows in sampled_rows.items()]).requires_grad_()
    counts = torch.tensor([len(rows) for rows in sampled_rows.values()])
    owners = torch.repeat_interleave(torch.arange(len(sampled_rows)), counts)
    regulariser = options.weight * spreadout(stacked, owners, margin=options.margin)
    (gradient,) = torch.autograd.grad(regulariser, stacked)
    rate = training.optimizer.lr * optimizers.rate_factor(training.schedule, s.round, training.rounds)
    moved = torch.split(stacked.detach() - rate * gradient, counts.tolist())
    return {
        name: centres[name].index_copy(0, rows, value)
        for (name, rows), value in zip(sampled_rows.items(), moved, strict=True)
    }


def _sample_centres(s: Server, name: str, count: int, wanted: int) -> Tensor:
    if wanted >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=s.rng("spreadout", name))[:wanted].sort().values


def _shape(recipe: Recipe) -> tuple[int, ...]:
    return -1, recipe.options(face.FaceOptions).network.embedding


CENTRES = Upload("centres", "weights", shape=_shape, guarantee="class centres: they stand for people, not protected")

METHOD = Method(
    name="fedface",
    title="FedFace",
    paper="Aggarwal et al., FedFace: Collaborative Learning of Face Recognition Model, 2021",
    advice="When each site has one person, such as a phone; sends class centres, which reveal people.",
    task="recognition",
    options=Options,
    network=face.network,
    home={"model": Home.LENT},
    calls={
        "train": Call(fedavg.local_training(loss, "model", fit=face.fit), fedavg.uploads_of("model")),
        "centres": Call(send_centres, (CENTRES,)),
        "take": Call(take_centres, (), takes=lambda _: (CENTRES,)),
    },
    server=program(lambda recipe: recipe.options(Options).spreadout),
    prediction=face.WITH_LOCAL,
    check=face.check,
    begin=face.begin,
    server_sees="every site's upload singly, and with it the class centres of its people",
)

"""FedAvg for face recognition: sites train the backbone on their own identities, and the server averages it.

The baseline of C.-T. Liu et al., "FedFR: Joint Optimization Federated Framework for Generic and Personalized Face
Recognition", AAAI 2022, "Federated Learning", steps 1 to 4: CosFace (Eq. 1) on the site's own K_l classes, class
centres W kept at the site, backbones weighted by the number of local images (Eq. 2). A site with one identity is
refused: a softmax over one class has no gradient.

Deviations from the paper: it does not say how W begins; here with the mean features of each identity under the model
of the site's first turn, as in the authors' released code for FedFR (``centres: random`` is the other choice).
"""

from torch import Tensor

from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Message, Method, Upload
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import averaging, faces
from fedvisage.methods.classes import classes_of
from fedvisage.nn.losses.cosface import cosface


class Options(faces.CosFaceOptions):
    """FedAvg's options."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 1 over the site's own classes."""
    options = site.recipe.options(Options)
    features = faces.features_of(site, batch.images)
    classes = classes_of(site, batch, faces.class_centres(site, public=False))
    return cosface(features, classes.centres, classes.labels, scale=options.scale, margin=options.margin)


def train(site: Site, message: Message) -> Message:
    """Steps 1 to 3: take the global model, train it with the site's own class centres, send the backbone only."""
    site.load(message)
    faces.own_centres(site)
    faces.train(site, loss, site.data, ("model",), (faces.OWN_CENTRES,))
    return site.tensors("model") | site.statistics()


METHOD = Method(
    name="fedavg",
    title="FedAvg (recognition)",
    paper=faces.PAPER,
    task="recognition",
    options=Options,
    network=faces.network,
    home={"model": Home.LENT},
    calls={"train": Call(train, (Upload("weights", "weights", parts=("model",)), EXAMPLES, LOSS))},
    server=averaging.server,
    user=faces.user,
    features=faces.user,
    averages=True,
    personal=faces.LOCALLY,
    least_identities=lambda _: 2,
)

"""Face recognition: a backbone and CosFace on a site's own people, shared by all recognition methods.

CosFace (Eq. 1 of C.-T. Liu et al., "FedFR", AAAI 2022) covers the site's own K_l classes; only the backbone leaves the
site.

A site creates its class centres W in its first round, from the mean features of its identities under the lent model (as
FedFR's released code and FedFace do) or at random. They stay at the site. So does the local model Θ_l from before the
last aggregation, which is the site's personal model (FedFR, Table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim import Optimizer

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.federation.method import GENERIC, Member, Personal, Prediction
from fedvisage.federation.server import Server
from fedvisage.federation.site import OWNED, Batch, Site
from fedvisage.methods.models.model import GENERIC_AND_LOCAL, ByExamples, Loss, Model, keep_local, local_model
from fedvisage.methods.models.model import LOCAL as LOCAL
from fedvisage.nn.face_networks import ClassCentres, FaceNetwork, NetworkName, face_network, load_backbone
from fedvisage.nn.losses.cosface import cosface
from fedvisage.nn.partial import BatchClasses, Sampler
from fedvisage.nn.timm_network import check_architecture
from fedvisage.recipe import MethodOptions, Recipe

# Classes of the softmax at a site: all of them, or with ``sampled_classes`` a sample per batch. Samples are for runs
# with very many identities, see :mod:`fedvisage.nn.partial`.
SAMPLER = "classes"
"""Key of the class sampler among the values that a visit holds."""


@contextmanager
def sample_classes(site: Site, optimizer: Optimizer, wanted: int | None, centres: list[nn.Parameter]) -> Iterator[None]:
    """Train on samples of the classes within this context, or on all classes if ``wanted`` is None."""
    if wanted is None:
        yield
        return
    rng = numpy_rng(site.recipe.runtime.seed, site.name, site.round, SAMPLER)
    sampler = site.held[SAMPLER] = Sampler(optimizer, centres, wanted, rng)
    try:
        yield
    finally:
        sampler.finish()
        del site.held[SAMPLER]


def classes_of(site: Site, batch: Batch, centres: list[nn.Parameter]) -> BatchClasses:
    """Return the classes of a batch: all classes with these centres, or those among them in the batch's sample."""
    assert batch.identities is not None
    sampler: Sampler | None = site.held.get(SAMPLER)
    if sampler is not None:
        return sampler.of(batch.class_numbers).of_first(sum(map(len, centres)))
    return BatchClasses(torch.cat([*centres]) if len(centres) > 1 else centres[0], batch.identities)


PAPER = "Liu et al., FedFR: Joint Optimization Federated Framework for Generic and Personalized Face Recognition, 2022"
OWN_CENTRES = "W"
SHIFT = "c"
"""Name of the bias of Π among a site's own parameters, if it has one."""
LENT = "lent features"


class FaceOptions(MethodOptions):
    """The network, which all recognition methods share."""

    network: FaceNetwork = FaceNetwork()

    @model_validator(mode="before")
    @classmethod
    def _model_names_its_network(cls, tree: Any) -> Any:
        """An algorithm on one of the backbones builds that backbone, also if the section does not name it."""
        model = getattr(cls, "of_model", "")
        network = tree.get("network", {}) if isinstance(tree, Mapping) else None
        if model not in get_args(NetworkName) or not isinstance(network, Mapping):
            return tree
        return {**tree, "network": {"name": model, **network}}


class CosFace(FaceOptions):
    """The network, CosFace's scale and margin, and the initial class centres of a site."""

    scale: float = Field(30.0, gt=0)
    """CosFace's s."""
    margin: float = Field(0.4, ge=0, lt=1)
    """CosFace's m."""
    centres: Literal["mean-features", "random"] = "mean-features"
    """Initial class centres of a site."""
    sampled_classes: int | None = Field(None, ge=2)
    """Number of classes in the softmax of a batch: its own classes plus randomly drawn ones (partial FC). The cost of a
    step then does not depend on the number of identities. Unset: all classes."""


class CosFaceOptions(CosFace, ByExamples):
    """CosFace's options and the weights of sites, which are their numbers of images."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the backbone, the one part that every method has."""
    return nn.ModuleDict({"model": face_network(recipe.options(FaceOptions).network, recipe.input.size)})


def check(recipe: Recipe) -> None:
    """Reject an invalid backbone, and adapters: methods with their own server program send whole networks."""
    if recipe.options(FaceOptions).network.adapters is not None:
        raise UserError(
            "recipe.method.network.adapters",
            f"{recipe.method.name} trains whole networks; adapters are "
            "for algorithms on a model, such as fedavg or fedprox",
        )
    check_backbone(recipe)


def check_backbone(recipe: Recipe) -> None:
    """Reject an unknown architecture, and more than one source of initial weights."""
    settings = recipe.options(FaceOptions).network
    if settings.arch is not None:
        check_architecture(settings.arch)
    if settings.adapters is not None and recipe.training.pretrain:
        raise UserError(
            "recipe.training.pretrain",
            "trains a whole network, but adapters need a finished one: name its file in method.network.weights",
        )
    if settings.weights is not None and (recipe.training.pretrain or recipe.training.start):
        raise UserError(
            "recipe.method.network.weights",
            "and training.pretrain or training.start all give initial weights; leave all but one out",
        )


def begin(s: Server) -> None:
    """Load the weights that the recipe names into the initial backbone."""
    network = s.recipe.options(FaceOptions).network
    weights = network.weights
    if weights is not None and network.adapters is None:
        load_backbone(s.net["model"], s.file(weights))


def network_with_public_centres(recipe: Recipe) -> nn.ModuleDict:
    """Build the backbone and the centres of the public identities."""
    if recipe.data.public_identities is None:
        raise UserError("recipe.data.public", f"{recipe.method.name} trains with public identities; name a set of them")
    net = network(recipe)
    net["centres"] = ClassCentres(recipe.data.public_identities, recipe.options(FaceOptions).network.embedding)
    return net


def predict(member: Member) -> Tensor:
    """Return features; with ``evaluation.recognition.flip``, add the features of the mirrored images."""
    features: Tensor = member.net["model"](member.images)
    if member.recipe.evaluation.people.flip:
        features = features.float() + member.net["model"](member.images.flip(-1)).float()
    return features


def own_centres(site: Site, name: str = OWN_CENTRES) -> nn.Parameter:
    """Return the class centres of the site's identities, which stay at the site."""
    options = site.recipe.options(CosFace)

    def make() -> Tensor:
        if options.centres == "mean-features":
            return mean_features(site)
        shape = len(site.data.identities), options.network.embedding
        return 0.01 * torch.randn(shape, generator=site.rng("centres", name))

    return site.own(name, make)


def mean_features(site: Site) -> Tensor:
    """Return the mean feature of each of the site's identities under the lent model, at unit length."""
    return means_of(normalize(lent_features(site)), site.data)


def lent_features(site: Site) -> Tensor:
    """Return the features of the site's images under the lent model, in order; call it before the first step.

    A caller that needs them several times in a round stores them under ``LENT``.
    """
    features: Tensor = site.held[LENT] if LENT in site.held else site.embed(site.net["model"], site.data)
    return features


def means_of(features: Tensor, view: View) -> Tensor:
    """Return the mean feature of each identity in a view, at unit length, in the order of the identities."""
    classes = torch.from_numpy(np.searchsorted(view.identities, view.subjects))
    sums = torch.zeros(len(view.identities), features.shape[1]).index_add_(0, classes, features)
    return normalize(sums)


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the backbone's features."""
    features: Tensor = net["model"](images)
    return features


def supervise(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return Eq. 1 over the site's own classes."""
    options = site.recipe.options(CosFace)
    classes = classes_of(site, batch, class_centres(site, public=False))
    return cosface(features.float(), classes.centres, classes.labels, scale=options.scale, margin=options.margin)


def fit(site: Site, loss: Loss) -> None:
    """Minimise a loss over one round's local work, with the site's own class centres."""
    own_centres(site)
    train_local_model(site, loss, site.data, tuple(site.net), (OWN_CENTRES,))


def train_local_model(site: Site, loss: Loss, view: View, parts: Sequence[str], own: Sequence[str]) -> None:
    """Minimise a loss over one round's local work on a view, then store the local model."""
    optimizer = site.optimizer(*parts, own=own)
    centres = class_centres(site, public="centres" in parts)
    with sample_classes(site, optimizer, site.recipe.options(CosFace).sampled_classes, centres):
        for batch in site.batches_of(view):
            site.learn(optimizer, partial(loss, site), batch)
    keep_local_backbone(site)


def keep_local_backbone(site: Site) -> None:
    """Store the local model without public centres, which recognition does not use."""
    keep_local(site, *(part for part in site.net if part != "centres"))


def class_centres(site: Site, *, public: bool) -> list[nn.Parameter]:
    """Return the centres of the site's own classes and, with ``public``, those of the public classes."""
    return [own_centres(site), *([site.net["centres"].get_parameter("weight")] if public else [])]


def features_of(site: Site, images: Tensor) -> Tensor:
    """Return the local model's features, computed in the run's precision and converted to float32."""
    with site.autocast():
        features: Tensor = site.net["model"](images)
    return features.float()


def own_transformation(site: Site) -> Callable[[Tensor], Tensor]:
    """Return the site's transformation of features: Π, or the identity if the site never trained."""
    stored = site.kept.get("own/Pi")
    if stored is None:
        return lambda features: features
    matrix = stored.to(site.compute.device)
    shift = site.kept[f"{OWNED}{SHIFT}"].to(site.compute.device) if f"{OWNED}{SHIFT}" in site.kept else 0.0
    return lambda features: features.float() @ matrix.T + shift


# Predictions by the models that a site evaluates on its own people; the method's choice is the last.
GENERIC_ONLY = Prediction(predict, features=predict, personal={"generic": GENERIC})
LOCAL_ONLY = Prediction(predict, features=predict, personal={"local": GENERIC_AND_LOCAL["local"]})
WITH_LOCAL = Prediction(predict, features=predict, personal=GENERIC_AND_LOCAL)
WITH_CUSTOMISED = Prediction(
    predict,
    features=predict,
    personal={**GENERIC_AND_LOCAL, "own": Personal(local_model, own_transformation)},
)


def two_identities(recipe: Recipe) -> int:
    """Require two identities per site: a softmax over one class has no gradient."""
    return 2


ADVICE: dict[NetworkName, str] = {
    "sphere20": "the smaller SphereFace network, for quick comparisons.",
    "sphere64": "the network of FedFR; the default.",
    "iresnet18": "the smallest iResNet; can start from published weights.",
    "iresnet50": "the medium iResNet; can start from published weights; takes adapters.",
    "iresnet100": "the largest iResNet; start from published weights and train adapters.",
    "mobilefacenet": "a small network for phones; can start from published weights.",
    "mobilefacenet-dw": "mobilefacenet as in the foamliu project.",
    "timm-embedding": "any image network of timm with a head for embeddings.",
}

MODELS = {
    name: Model(
        name=name,
        title=name,
        task="recognition",
        advice=f"Recognition: {advice}",
        options=CosFace,
        network=network,
        parts=("model",),
        represent=represent,
        supervise=supervise,
        prediction=WITH_LOCAL,
        weight="examples",
        fit=fit,
        check=check_backbone,
        begin=begin,
        least_identities=two_identities,
        own_head=own_centres,
    )
    for name, advice in ADVICE.items()
}
MODEL = MODELS["sphere64"]

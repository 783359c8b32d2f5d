"""Scoring of images with a finished model, for sites, the target and ``predict`` alike, and exact BatchNorm statistics.

Exact statistics (``training.statistics: exact``) are computed after training, over the sites' training images. During
training every site keeps running statistics of its latest batches under changing weights, and the server averages them;
this mean loses the variance between sites. With the option, the server sends one more request per BatchNorm layer after
training, in the order of a forward pass. Each site returns mean and variance of the layer's input, with all earlier
layers using the new statistics, and the server pools them into the statistics of all images. The result equals one
batch of all training images, whatever the sizes of the sites. The statistics of a site's own model come from that site
alone. The images are the stored training images, without augmentation. A layer that the network passes several times
uses the statistics of all passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.streams import numpy_rng, torch_rng
from fedvisage.data.batches import View, mixed_batches
from fedvisage.federation.method import Call, Member, Method
from fedvisage.federation.server import Server, join_members, members_of
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, load_parts, under
from fedvisage.federation.wire.schema import EXAMPLES, Upload
from fedvisage.nn.batchnorm import PooledStatistics, StatisticsMeter, call_counts, input_statistics, pool_statistics
from fedvisage.nn.compute import Compute, prefetch
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Recipe

Logits = NDArray[np.float64]
MIXED = 64
"""The batch size for comparisons of BatchNorm statistics between batches."""

NO_NUMBER = "the model returned NaN or infinity: it was damaged, or its training diverged (lower the learning rate)"
LIMIT = 40.0
"""The largest absolute logit; float64 still distinguishes its probability from 0 and 1."""


class Scorer:
    """The delivered parts of a method's network, ready to score images.

    All passes are in float32, also after training in bf16: exports compute in float32, and a threshold that was chosen
    on other scores would not fit them.
    """

    def __init__(self, method: Method, recipe: Recipe, compute: Compute) -> None:
        """Build the delivered parts; :meth:`load` loads the weights of a member."""
        self.method, self.recipe, self.compute = method, recipe, compute
        network = method.initial_network(recipe)
        self.net = nn.ModuleDict({part: network[part] for part in method.finished}).eval()
        self._loaded = list[Message]()
        compute.place(self.net)

    def load(self, model: Message) -> None:
        """Load one member's weights; for recognition also start and result, whose features are averaged."""
        self._loaded = list(members_of(model).values()) or [{}]
        for member in self._loaded:
            for name in self.net:
                if self.net[name].state_dict() and not under(f"{name}.", member):
                    raise UserError("model", f"has no weights of part {name}")
        load_parts(self.net, self._loaded[0])

    def scores(self, finished: Message, view: View) -> dict[str, Logits]:
        """Return bona fide logits by member; for methods that average members, only the average."""
        logits = {}
        for name, member in sorted(members_of(finished).items()):
            self.load(member)
            logits[name] = self.logits(view)
        return logits if self.method.members == "each" else {"": combine(list(logits.values()))}

    def logits(self, view: View) -> Logits:
        """Return the logits of a view's images, in order, with the loaded weights."""
        return as_logits(self._all(self.method.prediction.predict, view)) if len(view) else np.empty(0)

    def live(self, view: View, positions: NDArray[np.int64]) -> Tensor:
        """Return the bona fide logits of images, with gradients unless the caller disables them."""
        return self.method.prediction.predict(self._read(view, positions)).float()

    def features(self, view: View) -> Tensor:
        """Return the features of a view's images, in order, for plots."""
        if self.method.prediction.features is None:
            raise ValueError(f"{self.method.name} has no features to show")
        return self._all(self.method.prediction.features, view)

    def embeddings(self, view: View) -> Tensor:
        """Return a recognition method's features of a view's images, in order."""
        return self._averaged(lambda: self._all(self.method.prediction.predict, view))

    def spread(self, view: View) -> float | None:
        """Return the spread of random draws per prediction, as a mean over images; None without random draws."""
        draw_spread = self.method.prediction.draw_spread
        return None if draw_spread is None else float(self._all(draw_spread, view).mean())

    def scatter(self, finished: Message, view: View) -> float:
        """Return the distance between mixed batches in BatchNorm statistics, as a mean over members."""
        if not len(view):
            return 0.0
        distances = []
        for _, member in sorted(members_of(finished).items()):
            self.load(member)
            with torch.inference_mode(), StatisticsMeter(self.net) as meter:
                for batch in self._batches(view, self._mixed_positions(view)):
                    self.method.prediction.predict(batch)
            distances.append(meter.scatter or 0.0)
        return float(np.mean(distances))

    def scores_and_scatter(self, finished: Message, view: View) -> tuple[Logits, float]:
        """Return the results of ``scores`` and ``scatter`` from one pass over mixed batches.

        Methods with random draws cannot use this function, because their draws depend on the batches.
        """
        by_member, distances = [], []
        for _, member in sorted(members_of(finished).items()):
            self.load(member)
            logits, mixed = np.empty(len(view)), self._mixed_positions(view)
            with torch.inference_mode(), StatisticsMeter(self.net) as meter:
                outputs = [self.method.prediction.predict(batch) for batch in self._batches(view, mixed)]
                logits[np.concatenate(mixed)] = as_logits(torch.cat(outputs).float())
            by_member.append(logits)
            distances.append(meter.scatter or 0.0)
        return combine(by_member), float(np.mean(distances))

    def score_images(self, images: Tensor) -> Tensor:
        """Score uint8 RGB images of the network's size."""
        ready = prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)
        generator = torch_rng(self.recipe.runtime.seed, "inference", device=self.compute.device)
        with torch.inference_mode():
            member = Member(self.net, ready, generator, self.recipe)
            output = self._averaged(lambda: self.method.prediction.predict(member).float())
        if not bool(torch.isfinite(output).all()):
            raise RunFailed(NO_NUMBER)
        return output

    def score_alone(self, crops: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Score crops (H×W×3, RGB, of the network's size) in batches, independently of each other.

        In float32 the scores of a batch equal those of single images up to rounding, below 1e-6 in probability. A
        method with random draws would use other draws for the second image of a batch, so its batches have one image.
        """
        size = self.recipe.evaluation.batch if self.method.prediction.draw_spread is None else 1
        batches = (np.stack(crops[start : start + size]) for start in range(0, len(crops), size))
        return torch.cat([self.score_images(torch.from_numpy(batch).permute(0, 3, 1, 2)).cpu() for batch in batches])

    def _averaged(self, embed: Callable[[], Tensor]) -> Tensor:
        """Return the output of the loaded model, or the mean of the unit features of the loaded models."""
        if len(self._loaded) < 2:
            return embed()
        features = []
        for member in self._loaded:
            load_parts(self.net, member)
            features.append(nn.functional.normalize(embed()))
        return torch.stack(features).mean(dim=0)

    def _all(self, function: Callable[[Member], Tensor], view: View) -> Tensor:
        with torch.inference_mode():
            batches = self._batches(view, self.positions(view))
            return torch.cat([function(batch).float() for batch in batches]).cpu()

    def _batches(self, view: View, positions: Sequence[NDArray[np.int64]]) -> Iterator[Member]:
        """Yield batches of images for the network; a GPU receives the next one while it computes."""
        return prefetch(positions, partial(self._read, view), lambda batch: [batch.images], self.compute.prefetcher)

    def _read(self, view: View, positions: NDArray[np.int64]) -> Member:
        images = view.batch(positions).images
        ready = prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)
        generator = torch_rng(self.recipe.runtime.seed, "inference", int(positions[0]), device=self.compute.device)
        return Member(self.net, ready, generator, self.recipe)

    def _mixed_positions(self, view: View) -> list[NDArray[np.int64]]:
        return mixed_batches(view, numpy_rng(self.recipe.runtime.seed, "scatter"), MIXED)

    def positions(self, view: View) -> list[NDArray[np.int64]]:
        """Return the positions of each batch of a view, in order."""
        size = self.recipe.evaluation.batch
        return [np.arange(start, min(start + size, len(view))) for start in range(0, len(view), size)]


def as_logits(logits: Tensor) -> Logits:
    """Return a network's logits as float64, clipped to ``LIMIT``."""
    values: Logits = np.clip(logits.double().cpu().numpy(), -LIMIT, LIMIT)
    return values


def combine(logits: list[Logits]) -> Logits:
    """Return the logits of a model's only member, or the mean score of its members."""
    return logits[0] if len(logits) == 1 else mean_score(logits)


def mean_score(logits: list[Logits]) -> Logits:
    """Average members by probability (the papers' fused scores) and return the result as a logit."""
    live = np.mean([np.exp(-np.logaddexp(0.0, -values)) for values in logits], axis=0)
    attack = np.mean([np.exp(-np.logaddexp(0.0, values)) for values in logits], axis=0)
    return np.asarray(np.log(live) - np.log(attack))


# Exact BatchNorm statistics.

CALL, LAYER = "statistics", "layer"
MEAN, VARIANCE = "running_mean", "running_var"
"""BatchNorm's names of the statistics; the wire format rejects negative variances under this name."""

MOST = 1 << 16
"""The largest number of channels of a layer."""

_SAID = "of each channel before one BatchNorm layer, over the training images"
UPLOADS = (
    Upload(MEAN, "statistic", shape=(-1,), dtype="float64", most=MOST, guarantee=f"mean {_SAID}"),
    Upload(VARIANCE, "statistic", shape=(-1,), dtype="float64", most=MOST, guarantee=f"variance {_SAID}"),
    EXAMPLES,
)


def wants_exact_statistics(recipe: Recipe) -> bool:
    """Return whether a recipe asks for exact statistics."""
    return recipe.training.statistics == "exact"


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the call for statistics if the recipe asks for it; raise an error for a network without BatchNorm."""
    if not wants_exact_statistics(scorer.recipe):
        return {}
    layers = layers_of(scorer)

    def of_layer(site: Site, message: Message) -> Message:
        number = int(message[LAYER])
        scorer.load({name: value for name, value in message.items() if name != LAYER})
        name, times = list(layers.items())[number]
        passes = (partial(scorer.live, site.data, positions) for positions in scorer.positions(site.data))
        with torch.inference_mode():
            statistics = input_statistics(scorer.net.get_submodule(name), times, passes)
        return {MEAN: statistics.mean, VARIANCE: statistics.variance, EXAMPLES.name: torch.tensor(len(site.data))}

    def takes(recipe: Recipe) -> tuple[Upload, ...]:
        return (Upload(LAYER, "statistic", dtype="int64", guarantee="which layer is asked about"),)

    return {CALL: Call(of_layer, UPLOADS, exact=True, private=True, takes=takes, questions=len(layers))}


def layers_of(scorer: Scorer) -> Mapping[str, int]:
    """Return the BatchNorm layers of a forward pass, in order, with the number of their passes."""
    size = scorer.recipe.input.size
    layers = call_counts(scorer.net, lambda: scorer.score_images(torch.zeros(1, 3, size, size, dtype=torch.uint8)))
    if not layers:
        wrong = (
            f"exact statistics require BatchNorm layers, and the network of {scorer.method.name} does not have "
            "any; leave it out"
        )
        raise UserError("recipe.training.statistics", wrong)
    return layers


def with_exact_statistics(server: Server, scorer: Scorer, finished: Message) -> Message:
    """Return a finished model with the statistics of all sites' training images; a site's own member has its own.

    The server requests one layer after another. A lost site receives no requests for later layers.
    """
    members, sites = members_of(finished), server.present
    single = list(members) == [""]
    # The inputs of a layer depend on the statistics of the layers before it.
    for number, layer in enumerate(layers_of(scorer)):
        request: Message = {LAYER: torch.tensor(number)}
        if single:
            replies = server.ask(CALL, {**members[""], **request}, to=sites)
        else:
            replies = server.ask(CALL, request, each={name: members[name] for name in sites}, to=sites)
        channels = next(iter(members.values()))[f"{layer}.{MEAN}"].shape
        sites = tuple(name for name, reply in replies.items() if reply[MEAN].shape == reply[VARIANCE].shape == channels)
        for name in [name for name in replies if name not in sites]:
            fault = f"refused: sent {len(replies[name][MEAN])} channels instead of {channels[0]}"
            server.exchange.note_failure(name, fault)
        if not sites:
            raise RunFailed(f"no site sent the statistics before {layer}")
        for member, names in {"": sites}.items() if single else ((name, (name,)) for name in sites):
            statistics = pool_statistics(
                PooledStatistics(replies[name][MEAN], replies[name][VARIANCE], float(replies[name][EXAMPLES.name]))
                for name in names
            )
            weights = dict(members[member])
            for name, value in ((f"{layer}.{MEAN}", statistics.mean), (f"{layer}.{VARIANCE}", statistics.variance)):
                weights[name] = value.to(weights[name])
            members[member] = weights
    return join_members(members)

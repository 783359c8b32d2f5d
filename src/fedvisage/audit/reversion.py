"""PrivacyFace's reversion attack (Q. Meng et al., ICLR 2022, A.2.4): faces rebuilt from released vectors.

A network learns on public images to invert a feature extractor (Adam, L1 loss, rate 1e-3 divided by 10 every 10 epochs,
50 epochs, weight decay 5e-4, batches of 512). The attacker then passes class centres, clusters and noisy clusters
through it. The extractor itself decides whether a rebuilt face reveals a person: whether it is similar enough to
photographs of that person.

Here the attacker trains Table 5's network on the public images and the finished model. A rebuilt face matches a person
if its similarity to that person's photographs reaches the run's threshold, at the run's false match rate.

Deviations from the paper: figures in addition to the pictures; the number of epochs and the batch can be lowered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import interpolate, l1_loss, normalize

from fedvisage.audit.finding import Audit, AuditedRun, Finding, Picture
from fedvisage.audit.nearest import gallery
from fedvisage.audit.released import obstacle, open_feature_model, people_of, released_vectors, uploads_sentence
from fedvisage.base.errors import UserError
from fedvisage.base.streams import seed_global_rng
from fedvisage.metrics.similarity import Faces
from fedvisage.nn.inputs import as_float
from fedvisage.nn.optimizers import Adam


@dataclass(frozen=True)
class TrainingSettings:
    """The training settings of the attacker's network; the defaults are the paper's."""

    epochs: int = 50
    batch: int = 512
    lr: float = 1e-3
    weight_decay: float = 5e-4
    decay_every: int = 10
    width: int = 512
    seed: int = 0


START_SIDE = 4
"""Width and height of the first maps of the reversion network."""


def reversion_network(dimension: int, size: int, width: int = TrainingSettings.width) -> nn.Sequential:
    """Build the network of PrivacyFace's reversion attack, from an embedding to a square face.

    Q. Meng et al., ICLR 2022, Table 5: a fully connected layer with BN gives ``width`` maps of 4×4 (512 in the paper).
    Transposed convolutions 4×4 of stride 2 follow, each halving the number of maps; the first four have BN and ReLU,
    the last a sigmoid. Five give 128×128 pixels.

    Deviations from the paper: faces smaller than 128 take fewer transposed convolutions.
    """
    steps = int(math.log2(size / START_SIDE))
    if START_SIDE * 2**steps != size or steps < 1:
        raise UserError("size", f"must be 8, 16, 32 … for the reversion network, got {size}")
    layers: list[nn.Module] = [
        nn.Linear(dimension, width * START_SIDE**2),
        nn.BatchNorm1d(width * START_SIDE**2),
        nn.Unflatten(1, (width, START_SIDE, START_SIDE)),
    ]
    channels = width
    for _ in range(steps - 1):
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(),
        ]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1), nn.Sigmoid())


def train_reversion(features: Tensor, images: Tensor, schooling: TrainingSettings) -> nn.Sequential:
    """Train the network on features and their images (N × 3 × size × size in [0, 1])."""
    with seed_global_rng(schooling.seed, "reversion", "initial weights"):
        net = reversion_network(features.shape[1], images.shape[-1], schooling.width)
    optimizer = Adam(net.parameters(), lr=schooling.lr, weight_decay=schooling.weight_decay)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, schooling.decay_every, 0.1)
    shuffle = Generator().manual_seed(schooling.seed)
    net.train()
    for _ in range(schooling.epochs):
        order = torch.randperm(len(features), generator=shuffle)
        for rows in torch.split(order, schooling.batch):
            if len(rows) > 1:  # BatchNorm has no statistics of a single row
                optimizer.zero_grad(set_to_none=True)
                l1_loss(net(features[rows]), images[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        decay.step()
    return net.eval()


@torch.no_grad()
def rebuild_faces(net: nn.Sequential, vectors: Tensor) -> Tensor:
    """Return the faces that the network rebuilds from vectors."""
    faces: Tensor = net(vectors)
    return faces


def identification_rates(
    seen: NDArray[np.float32], photos: Faces, right: list[frozenset[int]], threshold: float
) -> tuple[float, float]:
    """Return how often a rebuilt face passes for a person that it represents, and for any other person.

    ``seen`` are the extractor's features of rebuilt faces. Both numbers are shares of comparisons with photographs that
    reach the threshold; the second shows what the first would be by chance.
    """
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (seen, photos.features)]
    passed = unit[0] @ unit[1].T >= threshold
    matching = np.array([[int(name) in truth for name in photos.identity] for truth in right])
    return _share(passed, matching), _share(passed, ~matching)


def _share(passed: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(passed[among].mean()) if among.any() else 0.0


TRAINING = TrainingSettings(epochs=20, batch=64, width=256)
LARGEST = 128
PAPER_SIZE = 112
"""The side of the paper's images; from this size on, Table 5's network is as printed."""
SHOWN = 6


def attack(subject: AuditedRun) -> Finding:
    """Train the network, rebuild every vector that the sites would release, and compare."""
    model, size = open_feature_model(subject), side_of(subject.recipe.input.size)
    # The attacker has the finished model and the public images, and learns to invert the model on these.
    public = torch.from_numpy(model.faces(subject.public).features)
    images = as_float(subject.public.batch(np.arange(len(subject.public))).images)
    net = train_reversion(public, resize_images(images, size), TRAINING)
    threshold = next((threshold.value for threshold in subject.saved.thresholds.values()), 1.0)
    photos, rows, drawn = model.faces(gallery(subject)), [], []
    first = min(subject.people.apart)
    persons = people_of(subject, model, first)
    # Pictures show the first site only; the table covers all sites.
    for released in released_vectors(subject, model):
        faces = rebuild_faces(net, torch.from_numpy(released.vectors))
        ready = resize_images(faces, subject.recipe.input.size).to(subject.setup.compute.device)
        with torch.no_grad():
            embedded = torch.cat([model.scorer.net["model"](part) for part in torch.split(ready, 256)])
        features = normalize(embedded.float().cpu()).numpy()
        rows.append((released.kind, *identification_rates(features, photos, released.right, threshold), len(faces)))
        if released.site == first:
            drawn.append((faces[:SHOWN], resize_images(persons.behind(released)[:SHOWN], size)))
    # One row per kind, averaged over the sites and weighted by their numbers of vectors.
    table: list[dict[str, str | float]] = []
    for kind in dict.fromkeys(row[0] for row in rows):
        matches, others, counts = zip(*(row[1:] for row in rows if row[0] == kind), strict=True)
        means = [float(np.average(values, weights=counts)) for values in (matches, others)]
        table.append({"told": kind, "matches": means[0], "matches with others": means[1], "vectors": sum(counts)})
    rates = [threshold.far for threshold in subject.saved.thresholds.values() if threshold.far is not None]
    rate = f"{rates[0]:.2g}" if rates else "unknown"
    says = (
        f"At the run's threshold (false match rate {rate}), {100 * float(table[0]['matches']):.2f} % of "
        "comparisons of a face rebuilt from a class centre with photographs of that person match, and "
        f"{100 * float(table[0]['matches with others']):.2f} % of those with other people. A face rebuilt from a "
        f"cluster is compared with all people of its site, and with all others. {uploads_sentence(subject)}"
    )
    kinds = "; ".join(str(row["told"]) for row in table)
    caption = (
        f"Rebuilt at the first site from, row by row: {kinds}. Below each row the mean photographs of the "
        "people behind the vectors: the person of a class centre, or all people whose class centres lie "
        "within a cluster's margin"
    )
    return Finding(says, {}, table, {"faces": (caption, picture(drawn))})


def side_of(size: int) -> int:
    """Return the side of rebuilt faces: Table 5's for images of the paper's size, else a power of 2 below theirs."""
    return LARGEST if size >= PAPER_SIZE else 2 ** int(math.log2(size))


def resize_images(images: Tensor, size: int) -> Tensor:
    """Return images resized to a square of this side."""
    return interpolate(images, size=(size, size), mode="bilinear", antialias=True).clamp(0, 1)


def picture(drawn: list[tuple[Tensor, Tensor]]) -> Picture:
    """Return two rows of faces per kind: rebuilt faces and mean photographs, padded with black."""
    blocks = [faces for both in drawn for faces in both]
    blank = torch.zeros_like(blocks[0][:1])
    rows = [torch.cat([*faces, *[blank[0]] * (SHOWN - len(faces))], dim=2) for faces in blocks]
    return (torch.cat(rows, dim=1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()


AUDIT = Audit("reversion", "Faces rebuilt from what sites tell", obstacle, attack)

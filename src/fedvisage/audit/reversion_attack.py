"""The reversion attack on a run: faces rebuilt from class centres, clusters and noisy clusters, and whom they betray.

The attacker trains Table 5's network on the public images and the finished model. A rebuilt face is taken for a person
where the model finds it as similar to that person's photographs as the run's threshold asks, at its false match rate.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from fedvisage.audit.finding import Audit, Finding, Picture, Subject
from fedvisage.audit.nearest_attack import gallery
from fedvisage.audit.reversion import Schooling, identified, rebuilt, train_reversion
from fedvisage.audit.told import obstacle, people_of, seen, sent_here, told
from fedvisage.data.batches import View
from fedvisage.nn.inputs import as_float

SCHOOLING = Schooling(epochs=20, batch=64, width=256)
LARGEST = 128
PAPER_SIZE = 112
"""The side of the paper's images, from which on Table 5's network is as printed."""
SHOWN = 6


def attack(subject: Subject) -> Finding:
    """Train the network, rebuild everything that every site would tell, and compare."""
    people = subject.data.people
    assert people is not None
    assert people.public is not None
    model, size = seen(subject), side_of(subject.recipe.input.size)
    public = torch.from_numpy(model.faces(people.public).features)
    net = train_reversion(public, resized(images_of(people.public), size), SCHOOLING)
    threshold = next((one.value for one in subject.saved.thresholds.values()), 1.0)
    photos, rows, drawn = model.faces(gallery(subject)), [], []
    first = min(people.apart)
    persons = people_of(subject, model, first)
    for one in told(subject, model):
        faces = rebuilt(net, torch.from_numpy(one.vectors))
        features = embedded(subject, model.scorer.net["model"], faces)
        rows.append((one.kind, *identified(features, photos, one.right, threshold), len(faces)))
        if one.site == first:
            drawn.append((faces[:SHOWN], resized(persons.behind(one)[:SHOWN], size)))
    table = summed(rows)
    says = (
        f"At the run's threshold (false match rate {_rate(subject)}), {100 * float(table[0]['matches']):.2f} % of "
        "comparisons of a face rebuilt from a class centre with photographs of that person match, and "
        f"{100 * float(table[0]['matches with others']):.2f} % of those with anybody else. A face rebuilt from a "
        f"cluster is compared with everybody of its site, and with everybody else. {sent_here(subject)}"
    )
    kinds = "; ".join(str(row["told"]) for row in table)
    caption = (
        f"Rebuilt at the first site from, row by row: {kinds}. Below each row the mean photographs of those behind: "
        "of a class centre its person, of a cluster all whose centres lie within its margin"
    )
    return Finding(says, {}, table, {"faces": (caption, picture(drawn))})


def side_of(size: int) -> int:
    """Return the side of rebuilt faces: Table 5's for images of the paper's size, else the power of 2 below theirs."""
    return LARGEST if size >= PAPER_SIZE else 2 ** int(math.log2(size))


def images_of(view: View) -> Tensor:
    """Return a view's images as floats."""
    return as_float(view.batch(np.arange(len(view))).images)


def resized(images: Tensor, size: int) -> Tensor:
    """Return images of another size."""
    return interpolate(images, size=(size, size), mode="bilinear", antialias=True).clamp(0, 1)


@torch.no_grad()
def embedded(subject: Subject, network: torch.nn.Module, faces: Tensor) -> np.ndarray:
    """Return the model's features of rebuilt faces."""
    ready = resized(faces, subject.recipe.input.size).to(subject.setup.compute.device)
    with subject.setup.compute.autocast():
        features = torch.cat([network(part) for part in torch.split(ready, 256)])
    return normalize(features.float().cpu()).numpy()


def summed(rows: list[tuple[str, float, float, int]]) -> list[dict[str, str | float]]:
    """Return one row per kind: means over the sites, each vector counting alike."""
    means: list[dict[str, str | float]] = []
    for kind in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == kind]
        weights = [row[3] for row in own]
        means.append(
            {
                "told": kind,
                "matches": float(np.average([row[1] for row in own], weights=weights)),
                "matches with others": float(np.average([row[2] for row in own], weights=weights)),
                "vectors": sum(weights),
            }
        )
    return means


def picture(drawn: list[tuple[Tensor, Tensor]]) -> Picture:
    """Return two rows of faces for each kind, the rebuilt ones and the means; a kind with few vectors leaves black."""
    shown = [faces for both in drawn for faces in both]
    blank = torch.zeros_like(shown[0][:1])
    rows = [torch.cat([*faces, *[blank[0]] * (SHOWN - len(faces))], dim=2) for faces in shown]
    return (torch.cat(rows, dim=1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()


def _rate(subject: Subject) -> str:
    rates = [one.far for one in subject.saved.thresholds.values() if one.far is not None]
    return f"{rates[0]:.2g}" if rates else "unknown"


AUDIT = Audit("reversion", "Faces rebuilt from what sites tell", obstacle, attack)

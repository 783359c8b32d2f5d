"""Write a method with another local loss, train it, and compare it with FedPAD.

    python examples/own_method.py runs/example

The method smooths the labels: Szegedy et al., "Rethinking the Inception Architecture", 2016, section 7.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import fedvisage as fv
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import fedpad


class Options(resnet18.Options):
    """FedPAD's options and the share of label smoothing."""

    smoothing: float = Field(0.1, ge=0, lt=1)


def smoothed_loss(site: fv.Site, batch: fv.Batch) -> Tensor:
    """Binary cross-entropy on smoothed labels; without smoothing this is FedPAD's Eq. 1."""
    share = site.recipe.options(Options).smoothing
    logits = site.net["model"](batch.images).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits, batch.labels * (1 - share) + share / 2)


METHOD = replace(
    fedpad.METHOD,
    name="smoothed",
    title="FedPAD, smoothed labels",
    options=Options,
    calls={"train": fv.averaging.training_call(smoothed_loss, "model")},
)


def main() -> None:
    """Train FedPAD and the method above, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("changes", nargs="*", help="changes of the recipe, such as training.rounds=2")
    options = parser.parse_args()
    fedpad_run = fv.run("demo/fedpad", out=options.out / "fedpad", changes=options.changes)
    smoothed_run = fv.run("demo/fedpad", out=options.out / "smoothed", method=METHOD, changes=options.changes)
    print(fv.compare([fedpad_run, smoothed_run]))


if __name__ == "__main__":
    main()

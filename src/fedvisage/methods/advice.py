"""When to use which method: one line of advice for each, grouped by purpose, and one per algorithm and model.

``fedvisage methods`` prints these lines, and ``docs/choosing-a-method.md`` has the same ones. A test compares both with
the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

ALGORITHMS: dict[str, str] = {
    "fedavg": "Plain averaging of locally trained weights: the first choice, and the baseline of the others.",
    "fedprox": "When sites train long and drift apart: a proximal term (mu) keeps them near the common model.",
    "moon": "When sites drift apart: a contrastive term draws features to the common model's; more work per step.",
    "fedbn": "When cameras and light differ between sites: each site keeps its own normalisation layers.",
    "afl": "When no site may be left behind: optimises the worst mixture of sites instead of their mean.",
    "fedadam": "When plain averaging learns slowly or unsteadily: the server takes Adam steps; tune the server's rate.",
    "fedyogi": "As fedadam with Yogi's second moment, which changes more gradually.",
    "scaffold": "When sites train with SGD and their data differ: control variates remove drift; doubles the upload.",
    "fednova": "When sites take different numbers of steps per round: averages directions; needs SGD.",
}
"""Advice on each algorithm, for every model and both tasks."""

MODELS: dict[str, str] = {
    "resnet18": "Attack detection: FedPAD's network, trained from random weights or a start; the default.",
    "vit": "Attack detection: ViT-B/16 of FedSIS's comparison; large, so start from published weights.",
    "vit-h": "Attack detection: ViT with a convolutional tokenizer, which preserves micro-texture.",
    "fedma-vgg": "Attack detection: FedMA's VGG without BatchNorm, to compare FedMA with averaging on one network.",
    "minifasnet": "Attack detection: a small network on 80 pixels; starts from published weights for real cameras.",
    "timm": "Attack detection: any image network of timm, such as a small one for a device.",
    "adapters": "Attack detection: a frozen timm transformer; only adapters of a few megabytes are sent.",
    "sphere20": "Recognition: the smaller SphereFace network, for quick comparisons.",
    "sphere64": "Recognition: the network of FedFR; the default.",
    "iresnet18": "Recognition: the smallest iResNet; can start from published weights.",
    "iresnet50": "Recognition: the medium iResNet; can start from published weights; takes adapters.",
    "iresnet100": "Recognition: the largest iResNet; start from published weights and train adapters.",
    "mobilefacenet": "Recognition: a small network for phones; can start from published weights.",
    "mobilefacenet-dw": "Recognition: as mobilefacenet, in the variant of the foamliu project and its weights.",
    "timm-embedding": "Recognition: any image network of timm with a head for embeddings.",
}
"""Advice on each model that an algorithm can train."""

GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "Attack detection by averaging": (
        "Several sites have live and attack images.",
        {
            "fedpad": "Start here: FedAvg on a ResNet-18; small, takes secure aggregation and differential privacy.",
            "fedgpad": "When sites have depth maps and can send weights per batch; each site keeps its specific parts.",
            "fedprox": ALGORITHMS["fedprox"],
            "moon": ALGORITHMS["moon"],
            "fedbn": ALGORITHMS["fedbn"],
            "afl": ALGORITHMS["afl"],
            "fedadam": ALGORITHMS["fedadam"],
            "fedyogi": ALGORITHMS["fedyogi"],
            "scaffold": ALGORITHMS["scaffold"],
            "fednova": ALGORITHMS["fednova"],
            "fedma": "To study matching of neurons before averaging; layer by layer, on a VGG without BatchNorm.",
        },
    ),
    "Attack detection without training networks": (
        "Sites have weak machines, slow lines or few images.",
        {
            "federated_texture": "When attacks come from printers, screens and cameras that no site has; colour "
            "histograms and a linear classifier, no network.",
            "fedstackfpad": "When only one round is possible: linear classifiers on frozen features, then stacking.",
        },
    ),
    "Attack detection by split learning": (
        "The server has a large machine, and sites are online for every batch.",
        {
            "fedsis": "A transformer cut between site and server; tokens and gradients cross the wire in every batch.",
            "festa": "The baseline of fedsis: the same cut, without sampling of blocks.",
            "fedavg-vit-h": "The averaged baseline on the same transformer; no traffic within a round.",
            "fedprox-vit-h": "As fedavg-vit-h with fedprox's proximal term.",
            "moon-vit-h": "As fedavg-vit-h with moon's contrastive term.",
        },
    ),
    "Baselines of attack detection": (
        "You want to measure the gain of a federation.",
        {
            "single": "Each site alone, evaluated singly: what a federation should beat.",
            "fused": "Each site alone, with averaged scores: what sites reach without a common model.",
            "pooled": "Simulation only: fedpad's network on all data in one place: what federating costs.",
            "colour_texture": "Simulation only: a classical detector on all data in one place.",
            "depth_only": "Simulation only: a depth estimator on all data in one place; needs depth maps.",
            "vit": "Simulation only: ViT on all data in one place, for comparison with fedsis.",
            "vit-h": "Simulation only: ViT-H on all data in one place, for comparison with fedsis.",
            "vit-h-is": "Simulation only: fedsis's network on all data in one place.",
        },
    ),
    "Recognition by averaging": (
        "Sites have people, and there is a public set of other people.",
        {
            "fedavg": "Start here: FedAvg on a face network; class centres stay at the sites; two people per site.",
            "fedfr": "When there is a public set of people: hard negatives from it, and a personal model per site.",
            "fine-tune": "Personal models in two stages: fedfr without its personal part, then training at each site.",
            "distillation": "As fine-tune, with the common model as a teacher so that a site forgets less.",
            "fedface": "When each site has one person, such as a phone; sends class centres, which reveal people.",
        },
    ),
    "Recognition with noisy clusters": (
        "Sites have many people, and each may release noisy group centres.",
        {
            "privacyface": "Noisy clusters of class centres with an (ε, δ) guarantee; no gain was seen at demo size.",
            "conventional": "The baseline of privacyface: the same training, nothing released besides weights.",
            "privacyface-without-noise": "Research only: clusters without noise; all sites see the means of people.",
            "privacyface-naive": "Research only: noise on each class centre, which leaves almost no signal.",
            "privacyface-fedface": "Research only: class centres are sent and spread out, in privacyface's comparison.",
        },
    ),
    "Baselines of recognition": (
        "You want to measure the gain of a federation.",
        {
            "pretrained": "No training at the sites: the model of the public set, as it is.",
            "privacyface-local": "Each site alone, from the same first model and with the same loss as privacyface.",
            "centralised": "Simulation only: public and site images in one place: what federating costs.",
            "privacyface-global": "Simulation only: all people in one place, for comparison with privacyface.",
        },
    ),
}
"""Methods by what the reader has and wants: the group's title, its condition, and one line per method."""

METHODS: dict[str, str] = {name: line for _, lines in GROUPS.values() for name, line in lines.items()}
"""One line of advice per method of the catalogue."""


def advice_on(name: str, model: str | None = None) -> str:
    """Return the advice on a method, or on an algorithm with a model; empty for methods of other packages."""
    if model is None:
        return METHODS.get(name, "")
    return " ".join(line for line in (ALGORITHMS.get(name, ""), MODELS.get(model, "")) if line)


def as_lines(names: Iterable[str]) -> Iterator[str]:
    """Yield methods with their advice, group by group; methods of other packages come last."""
    present = set(names)
    width = max(map(len, present))
    for title, (_, lines) in GROUPS.items():
        yield from _block(title, {name: line for name, line in lines.items() if name in present}, width)
    yield from _block("Other packages", dict.fromkeys(sorted(present - METHODS.keys()), ""), width)


def _block(title: str, lines: Mapping[str, str], width: int) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {name:<{width}}  {line}".rstrip() for name, line in lines.items())
        yield ""

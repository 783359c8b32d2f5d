"""The model card of an exported directory: purpose, origin of the threshold, and limits of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedvisage.base.extensions import missing_extra
from fedvisage.data.crops import are_all_rendered
from fedvisage.device.exported import (
    CARD,
    GRAPH,
    INT8_GRAPH,
    MEMBERS,
    RATES_FROM,
    Config,
    Description,
    OperatingPoint,
    read_config,
)
from fedvisage.device.fused import FusedConfig, folder_of
from fedvisage.metrics.operating_point import ErrorCurves
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.threshold import Estimate, describe_rule
from fedvisage.tasks.finished_model import FinishedModel

_MEASURED = ("hter", "eer", "auc", "bpcer")
"""Metrics on the run's target that the card repeats, besides the APCER of each species."""

PAD_TAGS = ("presentation-attack-detection", "liveness")
_PURPOSE = {
    "pad": "Distinguishes a living face from a presentation attack (prints, replays, masks) in an RGB crop of a face.",
    "recognition": "Turns an aligned face into an embedding of unit length; the cosine of two embeddings decides "
    "whether they are the same person.",
}
_OUTPUT = {
    "pad": "`score` (probability of a living face) and `logit`, N each",
    "recognition": "`embedding`, N×D, of unit length",
}

_SIMULATED = (
    "It is not recorded here whether the sites' attacks were real. Simulated attacks do not replace real ones: a"
    " detector trained on them had an AUC of 0.37 on real prints, worse than chance. Evaluate the model on real attacks"
    " with your own camera before you use it."
)


def write_card(path: Path, model: FinishedModel, config: Config, figures: Metrics, notices: Sequence[str]) -> None:
    """Write the card in the format of a model hub: metadata, then text. The function makes no network requests."""
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError:
        raise missing_extra("export", "huggingface_hub") from None
    description = config.float32.description
    target, results = str(figures.get("target") or "target"), []
    for name, value in _figures_of_graph(model, description, figures).items():
        task_name = "presentation attack detection"
        results.append(EvalResult("image-classification", "private", target, name, value, task_name=task_name))
    data = ModelCardData(
        library_name="fedvisage",
        pipeline_tag="image-classification" if description.task == "pad" else "image-feature-extraction",
        tags=[
            *("face", "federated-learning", "onnx"),
            *(PAD_TAGS if description.task == "pad" else ("face-recognition",)),
        ],
        model_name=f"{model.setup.method.title} ({description.task})",
        eval_results=results or None,
    )
    _write(path, data.to_yaml(), _lines(model, config, notices))


def _figures_of_graph(model: FinishedModel, description: Description, figures: Metrics) -> dict[str, float]:
    """Return the run's figures at its target, or none if they are not those of this graph at its threshold."""
    own = figures.parts("members").get(description.member, Metrics()) if description.member else figures
    # The run evaluated another model if one of them was adapted, or if its prediction draws.
    differs = model.recipe.evaluation.adapt is not None or description.adapted is not None or description.drawn
    threshold = description.threshold
    if model.task != "pad" or differs or threshold is None or own.number("threshold") != threshold.value:
        return {}
    names = {name: own.number(name) for name in _MEASURED}
    names |= {f"apcer_{species}": own.number(f"apcer.{species}") for species in own.part("apcer")}
    return {name: value for name, value in names.items() if value is not None}


def _write(path: Path, metadata: str, lines: Sequence[str]) -> None:
    """Parse a card with the hub's own reader, then write it to a file."""
    from huggingface_hub import ModelCard

    ModelCard("\n".join(["---", metadata, "---", "", *lines, ""])).save(path)


def _lines(model: FinishedModel, config: Config, notices: Sequence[str]) -> list[str]:
    description, method = config.float32.description, model.setup.method
    graphs = [f"- `{GRAPH}`: float32, SHA-256 `{config.float32.file.sha256}`"]
    if config.int8 is not None:
        graphs.append(
            f"- `{INT8_GRAPH}`: int8, SHA-256 `{config.int8.file.sha256}`; {_threshold(config.int8.description)}"
        )
    if (origin := model.saved.origin) is None:
        source = f"Trained by {method.title} ({method.paper}): federated learning, in which the faces stayed with their"
        source += " owners."
    else:
        licence = origin["licence"] or "not stated"
        source = f"Converted from {origin['source']['name']} of {origin['source']['project']}, not trained further."
        source += f" Licence of the weights: {licence}."
    trained = "; ".join(map(str, description.trained_on)) or "unknown"
    rendered = are_all_rendered(description.trained_on)
    return [
        f"# {method.title}",
        "",
        _PURPOSE[description.task],
        source,
        "",
        "## Use",
        "```python",
        "from fedvisage.device import Pipeline",
        "",
        f'Pipeline({description.task}="this directory").check(image)  # uint8, height × width × 3, RGB',
        "```",
        f"The graph takes `images`, uint8 N×{description.size}×{description.size}×3 in RGB, and gives"
        f" {_OUTPUT[description.task]}. All arithmetic is inside.",
        "",
        *graphs,
        "",
        "## Threshold",
        f"{_threshold(description)}. Another population, camera or kind of attack has other error rates: measure them.",
        *([_curves_line(config.curves)] if config.curves is not None else []),
        "",
        "## Crops",
        f"A device cuts out: {description.crop}. Trained on: {trained}.",
        "",
        "## Limits",
        "- The sites' data are private and not described here. Error rates for groups of people are not known.",
        "- A decision is a probability, not proof. Do not refuse or admit anybody on it alone.",
        *([f"- {_SIMULATED}"] if description.task == "pad" else []),
        *(["- Trained on rendered faces only: a decision on a photograph means nothing."] if rendered else []),
        *([f"- {notice}" for notice in notices]),
        "",
        "## Digests",
        f"weights `{description.model_sha256}`, recipe `{description.recipe_sha256}`, fedvisage "
        f"{description.version}. `parity.json` compares the graph with torch.",
    ]


def _curves_line(curves: ErrorCurves) -> str:
    """Return the sentence on the people behind the curves."""
    counts = {"bona fide or genuine": curves.rejected, **curves.accepted}
    people = ", ".join(f"{name} {curve.people:,}" for name, curve in counts.items())
    purpose = "`config.json` has the sites' averaged error rates for other operating points (`--at`)"
    return f"{purpose}. Held-out people: {people}."


def _threshold(description: Description) -> str:
    point = description.threshold
    if point is None:
        return "The sites had too few pairs to choose one"
    return _point(point, "logit" if description.task == "pad" else "cosine", RATES_FROM[description.arithmetic])


def _point(point: OperatingPoint, scale: str, place: str = "") -> str:
    if point.estimates:
        rates = ", ".join(f"{name} {Estimate(**value.model_dump())}" for name, value in point.estimates.items())
        return f"Threshold: {scale} {point.value:.6g}, chosen for {point.rule}; on the sites' held-out people: {rates}"
    rates = ", ".join(
        f"{name} {value:.2%}" for name, value in (("FAR", point.far), ("FRR", point.frr)) if value is not None
    )
    measured = f"{place}: {rates}" if point.rule == "fixed" else f"{rates} where it was chosen"
    return f"Threshold: {scale} {point.value:.6g}, {describe_rule(point.rule)}{f' ({measured})' if rates else ''}"


def write_fused_card(
    path: Path, names: Sequence[str], config: FusedConfig, notices: Sequence[str], measured_on: str
) -> None:
    """Write the card of a fused model, which describes the sum; every member keeps its own card."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="fedvisage",
        pipeline_tag="image-classification",
        tags=["face", "federated-learning", "onnx", *PAD_TAGS],
        model_name="Fused detectors (pad)",
    )
    rows = []
    for number, (name, member) in enumerate(zip(names, config.members, strict=True), 1):
        description = read_config(folder_of(path.parent, number)).float32.description
        rows.append(
            f"| [{number}]({MEMBERS}/{number}/{CARD}) | {Path(name).name} | {description.method} | "
            f"{description.crop.margin:g} | {description.size} | {member.weight:g} | {member.scale:.6g} | "
            f"`{description.model_sha256}` |"
        )
    chosen = _point(config.threshold, "logit")
    lines = [
        "# Fused detectors",
        "",
        _PURPOSE["pad"],
        "The score is the sum of weight × log-odds / scale over the members. A face gets a decision only if the picture"
        " holds the crop of every member.",
        "",
        "| member | source | method | margin | pixels | weight | scale | weights' SHA-256 |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "## Threshold",
        f"{chosen}{f' on held-out people of {measured_on}' if measured_on else ''}. Another population, camera or kind"
        " of attack has other error rates: measure them.",
        *([_curves_line(config.curves)] if config.curves is not None else []),
        "",
        "## Limits",
        "- The members' cards state their origins, licences and limits.",
        "- A decision is a probability, not proof. Do not refuse or admit anybody on it alone.",
        f"- {_SIMULATED}",
        *(f"- {notice}" for notice in notices),
    ]
    _write(path, data.to_yaml(), lines)

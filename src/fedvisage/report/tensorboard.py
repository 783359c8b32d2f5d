"""TensorBoard event files from a run's `rounds.jsonl` and `metrics.json`, for those who watch runs there."""

from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from fedvisage.federation.record.ledger import read_lines
from fedvisage.report.run_files import as_written, read_mapping

DIRECTORY = "tensorboard"


def write_events(run: Path) -> Path:
    """Write the event files of a run anew, into its directory `tensorboard`, and return that."""
    target = run / DIRECTORY
    target.mkdir(exist_ok=True)
    for earlier in target.glob("events.out.tfevents.*"):
        earlier.unlink()
    path = run / "rounds.jsonl"
    rounds, metrics = read_lines(path) if path.exists() else [], read_mapping(run / "metrics.json")
    with as_written(run):
        _write(target, run, rounds, metrics)
    return target


def _write(target: Path, run: Path, rounds: list[dict[str, Any]], metrics: dict[str, Any]) -> None:
    clock = _start(run / "rounds.jsonl", rounds)
    writer = SummaryWriter(str(target))
    try:
        for row in rounds:
            clock += float(row.get("seconds") or 0)
            for tag, value in round_scalars(row).items():
                writer.add_scalar(tag, value, int(row["round"]), walltime=clock)
        last = int(metrics.get("rounds") or 0)
        for tag, value in scalars({"user": _figures(metrics)}).items():
            writer.add_scalar(tag, value, last, walltime=clock)
    finally:
        writer.close()


def round_scalars(row: dict[str, Any]) -> dict[str, float]:
    """Return what is drawn of a round: losses, held-out figures, bytes, time, sites that answered."""
    kept = {key: row[key] for key in ("loss", "heldout", "bytes_up", "bytes_down", "seconds") if key in row}
    return scalars(
        kept | {"sites_replied": len(row.get("replied") or []), "sites_failed": len(row.get("failed") or {})}
    )


def scalars(tree: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested mapping by their path, such as `loss/O`."""
    numbers: dict[str, float] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            numbers |= scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[f"{prefix}{key}"] = float(value)
    return numbers


def _figures(metrics: dict[str, Any]) -> dict[str, Any]:
    kept = ("threshold", "hter", "eer", "auc", "tpr_at_fpr_1pct", "apcer", "bpcer", "acer", "bpcer_at_apcer", "video",
            "generic", "personalised")  # fmt: skip
    return {key: metrics[key] for key in kept if key in metrics}


def _start(path: Path, rounds: list[dict[str, Any]]) -> float:
    """Return when the run began as far as its files tell: so that drawing again gives the same times."""
    end = path.stat().st_mtime if path.exists() else 0.0
    return end - sum(float(row.get("seconds") or 0) for row in rounds)

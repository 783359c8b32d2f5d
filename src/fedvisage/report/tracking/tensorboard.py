"""TensorBoard event files from a run's `rounds.jsonl` and `metrics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.report.run_files import damaged_files_are_errors
from fedvisage.report.tracking.tracker import End, TrackedRun, round_scalars, target_scalars

DIRECTORY = "tensorboard"


class TensorBoard:
    """Writes event files into the run's directory."""

    def start(self, run: TrackedRun, earlier: str) -> str:
        """Create an event file; files of an earlier process stay next to it."""
        return self.begin(run.run, anew=not earlier)

    def begin(self, run: Path, *, anew: bool) -> str:
        """Create an event file in a run's directory; ``anew`` removes the files of earlier processes."""
        target = run / DIRECTORY
        target.mkdir(exist_ok=True)
        for earlier in target.glob("events.out.tfevents.*") if anew else ():
            earlier.unlink()
        self._writer = SummaryWriter(str(target))
        return DIRECTORY

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        """Write scalars."""
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, step, walltime=when)
        self._writer.flush()

    def artefact(self, path: Path) -> None:
        """Leave the file where it is: TensorBoard reads event files only."""

    def end(self, how: End) -> None:
        """Close the file."""
        self._writer.close()


def write_events(run: Path) -> Path:
    """Rewrite the event files of a run in its directory `tensorboard`, and return that directory."""
    path = run / ROUNDS
    rounds, metrics = read_lines(path) if path.exists() else [], Metrics()
    if (run / "metrics.json").exists():
        metrics = read_metrics(run / "metrics.json")
    board = TensorBoard()
    board.begin(run, anew=True)
    try:
        with damaged_files_are_errors(run):
            # Times are computed from the files, so that repeated calls give the same ones.
            seconds = [float(row.get("seconds") or 0) for row in rounds]
            clock = (path.stat().st_mtime if path.exists() else 0.0) - sum(seconds)
            for row, duration in zip(rounds, seconds, strict=True):
                clock += duration
                board.log(int(row["round"]), round_scalars(row), clock)
            board.log(int(metrics.get("rounds") or 0), target_scalars(metrics), clock)
    finally:
        board.end("finished")
    return run / DIRECTORY

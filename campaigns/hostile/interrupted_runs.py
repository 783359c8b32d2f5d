"""Files of interrupted runs exchanged, shortened or edited before ``--resume``, which must refuse each by name.

Every file was written by a run, or is a small edit of such a file. No case changes lines after the last checkpoint,
because a resumed run repeats their exchanges and no digest covers them.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from campaigns.hostile.runs import interrupt
from tests.toy import make_sets, run_toy, tree

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.federation.record.store import CHECKPOINTS, read_sealed, recipe_digest, write_sealed

LATEST = "checkpoints/000002.safetensors"
WAYS = ("exchanged", "exchanged", "shortened", "removed", "digit", "line", "added line", "moved", "downgraded")


class InterruptedRuns:
    """Runs with private state and snapshots, interrupted in their third round."""

    def __init__(self, prepared: Path) -> None:
        """Train the attacked run, and three others: another seed, the same recipe, an earlier version."""
        self.content = tree(make_sets(prepared), "fedbn", training__local={"batches": 1}, evaluation__snapshots=1)
        self.own, *self.others = (prepared / name for name in ("own", "seed", "same", "earlier"))
        for run in (self.own, *self.others):
            seed = {"runtime": {**self.content["runtime"], "seed": int(run.name == "seed")}}
            with suppress(RunFailed):
                run_toy({**self.content, **seed}, run, wire=interrupt)
        values = read_sealed(self.own / LATEST, "")[1]
        self.lengths = {"ledger.jsonl": values["ledger"], "rounds.jsonl": values["rounds"]}
        self.names = [*sorted({*values["digests"], *(f"sites/{site}" for site in "ABC")}), LATEST]
        _convert_to_earlier_version(self.others[2])

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change one file of the run."""
        run = shutil.copytree(self.own, place / "run")
        way, name = pick(draws, WAYS), pick(draws, self.names)
        if (way, name) == ("removed", LATEST):
            way = "shortened"  # without it, the run continues from the checkpoint before
        if name.startswith("sites/"):
            name += "/generation-000002.safetensors"
        if way == "downgraded":
            name = LATEST
            tensors, values = read_sealed(run / name, "")
            write_sealed(run / name, tensors, {key: value for key, value in values.items() if key != "digests"})
        elif way == "moved":
            name, other = pick(
                draws,
                [
                    ("sites/A/generation-000002.safetensors", "sites/B/generation-000002.safetensors"),
                    ("sites/C/generation-000002.safetensors", "sites/C/generation-000001.safetensors"),
                    ("snapshots/round-2.safetensors", "snapshots/round-1.safetensors"),
                    (LATEST, "checkpoints/000001.safetensors"),
                ],
            )
            shutil.copyfile(run / other, run / name)
        elif way == "exchanged":
            shutil.copyfile(pick(draws, self.others) / name, run / name)
        else:
            self._edit(run / name, way, draws)
        if (run / name).exists() and self._is_unchanged(run, name):
            way = "emptied"
            (run / name).write_bytes(b"")
        return Case([way, name], lambda: self._check_refusal(run, name))

    def _edit(self, path: Path, way: str, draws: np.random.Generator) -> None:
        """Edit the part of a file that the checkpoint covers, by lines if it is text."""
        length = self.lengths.get(path.name, path.stat().st_size)
        data, after = path.read_bytes()[:length], path.read_bytes()[length:]
        if way == "removed":
            path.unlink()
        elif way == "shortened":
            path.write_bytes(data[: int(draws.integers(length))])
        elif way == "digit" or path.suffix != ".jsonl":
            digits = [at for at, byte in enumerate(data) if byte in b"0123456789"]
            at = pick(draws, digits)
            digit = str((int(chr(data[at])) + int(draws.integers(1, 10))) % 10).encode()
            path.write_bytes(data[:at] + digit + data[at + 1 :] + after)
        else:
            lines = data.splitlines(keepends=True)
            at = int(draws.integers(len(lines)))
            removed = lines.pop(at)
            if way == "added line":
                at = int(draws.integers(len(lines)))
                lines.insert(at, lines[at].rstrip(b"}\n")[: len(removed)].ljust(len(removed) - 2) + b"}\n")
            path.write_bytes(b"".join(lines) + after)

    def _is_unchanged(self, run: Path, name: str) -> bool:
        """Return whether the part of a file that the checkpoint covers is unchanged."""
        length = self.lengths.get(name)
        return (run / name).read_bytes()[:length] == (self.own / name).read_bytes()[:length]

    def _check_refusal(self, run: Path, name: str) -> None:
        """Check that a resume refuses the run, names the file and changes nothing."""
        before = _content(run)
        try:
            run_toy(self.content, run, resume=True)
        except (UserError, RunFailed) as error:
            line = str(error)
        else:
            raise WronglyAccepted("the run was resumed")
        # A checkpoint of another run of the recipe is valid by itself, and the refusal names the other files.
        expected = name if name != LATEST else ""
        missing = name.endswith("generation-000002.safetensors") and "generation 2" in line
        if str(run) not in line or not (expected in line or missing):
            raise WronglyAccepted(f"{name} was not named: {line}")
        if _content(run) != before:
            raise WronglyAccepted("the run was refused and changed")
        raise Rejected(line)


def _content(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def _convert_to_earlier_version(run: Path) -> None:
    """Convert an interrupted run to an earlier version, without digests in checkpoints and names in private state."""
    environment = json.loads((run / "environment.json").read_text())
    del environment["run"]
    (run / "environment.json").write_text(json.dumps(environment))
    recipe = recipe_digest((run / "recipe.yaml").read_text())
    for path in (run / CHECKPOINTS).glob("*.safetensors"):
        tensors, values = read_sealed(path, "")
        del values["digests"]
        write_sealed(path, tensors, {**values, "recipe": recipe})
    for path in run.glob("sites/*/generation-*.safetensors"):
        write_sealed(path, read_sealed(path, "")[0], {})

"""A finished model adapted to a user's images without labels, and exported: where torch is, so that it can learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedvisage.device.config import Adapted
from fedvisage.device.writing import check_free
from fedvisage.errors import RunFailed, UserError
from fedvisage.export.conduct import Written, export
from fedvisage.export.crops import view_of
from fedvisage.federation.wire.message import digest_of
from fedvisage.progress import Say, counted, unheard
from fedvisage.recipe import Adapt
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.pad.adapt.user import Outcome, adapted_weights
from fedvisage.tasks.pad.judge import sources_of


@dataclass(frozen=True)
class AdaptedExport:
    """What was written, and to how many images the model was adapted."""

    written: Written
    images: int

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        return [f"adapted to {counted(self.images, 'image')}, without labels", *self.written.lines()]


def adapt_and_export(
    model: FinishedModel, out: Path, data: str, *, member: str = "", cache: Path, say: Say = unheard, threads: int = 1
) -> AdaptedExport:
    """Adapt a model to a prepared set behind the gate, and export it; if the gate keeps the model, write nothing."""
    check_free(out)
    if model.task != "pad":
        raise UserError(str(model.directory), "recognises people; only attack detection is adapted")
    view = view_of(model, data, "--data", cache, say)
    say(f"adapting to {counted(len(view), 'image')}")
    own = model.recipe.evaluation.adapt
    settings = own if own is not None and own.loop == "settled" else Adapt()
    sources = sources_of(model.setup.method, model.saved)
    finished, outcomes = adapted_weights(model.scorer, model.saved.finished, view, settings, sources)
    _require(outcomes)
    source = digest_of(model.saved.finished)
    described = Adapted(from_sha256=source, how="gated", images=len(view))
    adapted = replace(model, saved=replace(model.saved, finished=finished))
    written = export(adapted, out, data=data, member=member, cache=cache, say=say, threads=threads, adapted=described)
    return AdaptedExport(written, len(view))


def _require(outcomes: dict[str, Outcome]) -> None:
    """Refuse to pass the source model off as an adapted one."""
    reasons = sorted({reason for one in outcomes.values() for reason in (*one.skipped, *one.taken_back)})
    if not any(one.adapted and not one.taken_back for one in outcomes.values()):
        raise RunFailed(f"the gate keeps the model as it is ({', '.join(reasons)}); nothing was written")

"""A study at a size that takes seconds: every row, user and column, and figures that mean nothing.

For those who write a study, or are about to spend a night on one: each cell is trained for one batch on tiny rendered
sets and judged. Where a set is a directory, the rendered domain of the set's name stands in for it.
"""

from __future__ import annotations

from fedvisage.data.selection import ONLY, without_selection
from fedvisage.datasets.rendered.specification import Synthesis, parse_synthesis
from fedvisage.datasets.sources import SYNTHETIC, without_part
from fedvisage.errors import UserError
from fedvisage.faces.synthetic.domains import DOMAINS
from fedvisage.files import json_key
from fedvisage.methods import find
from fedvisage.studies.file import Row, Study
from fedvisage.studies.grid import changed, tree_of

SIZE = 32
CHANGES = (
    f"input.size={SIZE}",
    "training.rounds=1",
    "training.start=null",
    "training.batch=8",
    "evaluation.every=0",
    "evaluation.resamples=0",
    "evaluation.features=0",
    "runtime.threads=1",
)
BATCH, EPOCH = "training.local={batches: 1}", "training.local={epochs: 1}"
NARROW, FEW_HEADS = "method.network.width=8", "method.network.heads=2"
FEW = "method.minimum=2"
BENCHMARK = f"{SYNTHETIC} people identities=80 images=4 size={SIZE} first=200000 test=0.5"


def smoke(study: Study, *, rendered: bool = True) -> Study:
    """Return the study with tiny sets and networks, one batch per site, and its first seed only.

    With ``rendered`` off its sets stay what they are: tiny ones were found or are made elsewhere. Sites of recognition
    have little more than a batch, and go through it once: their steps are counted by epoch.
    """
    if rendered and study.protocol is not None:
        raise UserError("--smoke", "a protocol needs datasets: give --root, below which `fedvisage data pretend KIND"
                        " ROOT/KIND` has written small copies")  # fmt: skip
    small = study.model_copy(
        update={
            "title": f"SMOKE TEST, figures without meaning: {study.title}",
            "seeds": study.seeds[:1],
            **{key: {name: _tiny(name, entry, study) if rendered else entry for name, entry in entries.items()}
               for key, entries in (("sets", study.sets), ("trains", study.trains))},
            "benchmarks": {name: BENCHMARK if rendered else entry for name, entry in study.benchmarks.items()},
        }
    )  # fmt: skip
    rows = {name: _narrow(small, name) for name in small.rows}
    local = BATCH if study.public is None else EPOCH
    return changed(small.model_copy(update={"rows": rows}), [*CHANGES, local])


def _tiny(name: str, entry: str, study: Study) -> str:
    if study.public is not None:
        return _few_people(name, entry, study)
    source, only, meant = entry.partition(ONLY)
    domain = name.split("-")[0]
    if source.strip().startswith(SYNTHETIC):
        spec = parse_synthesis(source.strip().removeprefix(SYNTHETIC))
    elif domain in DOMAINS:
        spec = Synthesis(domain, seed=_of_the_domain(entry, domain, study))
    else:
        raise UserError(f"sets.{name}", "a smoke test renders a stand-in by the set's name, and no domain is called so")
    species = f" species={','.join(spec.species)}" if spec.species else ""
    further = [*([f"seed={spec.seed}"] if spec.seed else []), *spec.further]
    few = " ".join(["subjects=4 videos=1 frames=1 heldout=0.5", f"size={SIZE}{species}", *further])
    return f"{SYNTHETIC} {spec.domain} {few}{only}{meant}"


def _of_the_domain(entry: str, domain: str, study: Study) -> int:
    """Return which of a domain's directories an entry names: each has a stand-in of its own."""
    named = {name: without_selection(one)[0] for name, one in study.sets.items() if name.split("-")[0] == domain}
    return list(dict.fromkeys(named.values())).index(without_selection(entry)[0])


def _few_people(name: str, entry: str, study: Study) -> str:
    """Return rendered people for a study of recognition: of a share as many as make two a site.

    Few are trained on, but there are enough others for the figures of studies at demo size: in the benchmark 10,000
    impostor pairs and ten folds of each of four groups, and 1,000 pairs of a site's four test images and public people.
    """
    part = without_part(entry)[1]
    if name in {study.public, *(row.public for row in study.rows.values())}:
        return f"{SYNTHETIC} people identities=70 images=4 size={SIZE} first=100000 test=0 heldout=0.9"
    if name in study.users:
        return BENCHMARK
    share = f" part={part}" if part else ""
    first = 0 if part else 1000 * list(study.sets).index(name)
    return (
        f"{SYNTHETIC} people identities={2 * part.of if part else 2} images=4 size={SIZE} first={first} test=0.5{share}"
    )


def _narrow(study: Study, name: str) -> Row:
    """Return a row whose network, where its method has one of a chosen width, has the least width."""
    row = study.rows[name]
    method = tree_of(study, name, study.users[0], study.seeds[0])["method"]
    known = find(method).options.model_fields
    fields = getattr(known["network"].annotation, "model_fields", {}) if "network" in known else {}
    own = [FEW] if "minimum" in known else []
    own += [change for field, change in (("width", NARROW), ("heads", FEW_HEADS)) if field in fields]
    if "weights" in fields:  # a narrow network has no such file
        own.append(f"method.network.weights={json_key(fields['weights'].default)}")
    own += ["training.pretrain.epochs=1", "training.pretrain.stop=null"] if study.public is not None else []
    return row.model_copy(update={"set": [*row.set, *own]})

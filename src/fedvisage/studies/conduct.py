"""Conducting a study: run its missing cells, continue interrupted ones, and write its tables and page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import json_key, write_atomically, write_json
from fedvisage.base.processes import block_signals, cores, worker_processes
from fedvisage.base.progress import Say, discard, format_count
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import ONLY, split_entry
from fedvisage.datasets.show import contact_sheet
from fedvisage.datasets.sources import SYNTHETIC, resolve, without_part
from fedvisage.methods import find, read_method
from fedvisage.recipe import tree_of as recipe_tree
from fedvisage.recipe import validate
from fedvisage.render.domains import DOMAINS
from fedvisage.render.sets import Synthesis, parse_synthesis
from fedvisage.report.page import write_report
from fedvisage.report.tables import as_csv, as_latex
from fedvisage.report.tables import markdown as as_markdown
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.runs.directory import METRICS, RECIPE, RunDirectory
from fedvisage.studies.cells import run_here, without_workers
from fedvisage.studies.grid import Cell, cells_of, groups_of, tree_of, with_changes
from fedvisage.studies.page import differences, render
from fedvisage.studies.roots import Root, on_root
from fedvisage.studies.study import BLIND, Study, StudyRow, load_study, scale, value_of
from fedvisage.studies.table import as_table, markdown, summarise
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import check_entries

# Smoke tests: every kind of row and every column of a study in about a minute, with meaningless figures. They check a
# new study before a long run: each cell trains for one batch on tiny rendered sets and is evaluated. The rendered
# domain with the set's name replaces a directory.

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
BENCHMARK = f"{SYNTHETIC} people identities=80 images=4 size={SIZE} first=200000 test=0.5"


def shrink_for_smoke(study: Study, *, rendered: bool = True) -> Study:
    """Return the study with tiny sets and networks, one batch per site, its first target and its first seed.

    Of rows whose recipes differ only in data and numbers, it has the first one. With ``rendered`` off its sets are
    unchanged, because the caller provides tiny ones. Sites of recognition have little more than one batch and train
    for one epoch, because their steps are counted by epoch.
    """
    if rendered and study.protocol is not None:
        raise UserError(
            "--smoke",
            "a protocol needs datasets; write small copies with `fedvisage data pretend KIND ROOT/KIND`, and give"
            " --root ROOT",
        )
    small = study.model_copy(
        update={
            "title": f"SMOKE TEST, metrics are meaningless: {study.title}",
            "targets": study.targets[:1],
            "seeds": study.seeds[:1],
            **{
                key: {name: _tiny(name, entry, study) if rendered else entry for name, entry in entries.items()}
                for key, entries in (("sets", study.sets), ("trains", study.trains))
            },
            "benchmarks": {name: BENCHMARK if rendered else entry for name, entry in study.benchmarks.items()},
        }
    )
    # Networks become small first, then trainings short; rows that are then equal run once.
    rows = {name: _narrow(small, name) for name in small.rows}
    local = "batches" if study.public is None else "epochs"
    small = with_changes(small.model_copy(update={"rows": rows}), [*CHANGES, f"training.local={{{local}: 1}}"])
    return small.model_copy(update={"rows": _rows_of_each_kind(small)})


def _rows_of_each_kind(study: Study) -> dict[str, StudyRow]:
    """Return the first row of each kind, and the rows that train models for these."""
    first_rows: dict[str, str] = {}
    for name in study.rows:
        recipe = validate(tree_of(study, name, study.targets[0], study.seeds[0]), read_method)
        sections = {key: value for key, value in recipe_tree(recipe).items() if key not in ("title", "data")}
        first_rows.setdefault(json_key(_without_numbers(sections)), name)
    chosen = {*first_rows.values()}
    for name, row in reversed(study.rows.items()):  # a row is trained by an earlier one
        if name in chosen and row.trained_by is not None:
            chosen.add(row.trained_by)
    return {name: row for name, row in study.rows.items() if name in chosen}


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_numbers(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_without_numbers(element) for element in value]
    return None if isinstance(value, int | float) and not isinstance(value, bool) else value


def _tiny(name: str, entry: str, study: Study) -> str:
    if study.public is not None:
        return _few_people(name, entry, study)
    source, only, selection = entry.partition(ONLY)
    domain = name.split("-")[0]
    if source.strip().startswith(SYNTHETIC):
        spec = parse_synthesis(source.strip().removeprefix(SYNTHETIC))
    elif domain in DOMAINS:
        # Each directory of a domain has its own replacement: the seed is its number among them.
        sources = [split_entry(other)[0] for name, other in study.sets.items() if name.split("-")[0] == domain]
        spec = Synthesis(domain, seed=list(dict.fromkeys(sources)).index(split_entry(entry)[0]))
    else:
        raise UserError(
            f"sets.{name}", "a smoke test renders a substitute by the set's name, but there is no domain with that name"
        )
    species = f" species={','.join(spec.species)}" if spec.species else ""
    further = [*([f"seed={spec.seed}"] if spec.seed else []), *spec.further]
    amount = " ".join(["subjects=4 videos=1 frames=1 heldout=0.5", f"size={SIZE}{species}", *further])
    return f"{SYNTHETIC} {spec.domain} {amount}{only}{selection}"


def _few_people(name: str, entry: str, study: Study) -> str:
    """Return tiny rendered sets for a study of recognition; a set divided into shares has two people per share.

    Few people are trained on, but the other sets are large enough for the figures of studies at demo size: the
    benchmark has 10,000 impostor pairs and ten folds for each of four groups, and a site's four test images and the
    public people give 1,000 pairs.
    """
    part = without_part(entry)[1]
    if name in {study.public, *(row.public for row in study.rows.values())}:
        return f"{SYNTHETIC} people identities=70 images=4 size={SIZE} first=100000 test=0 heldout=0.9"
    if name in study.targets:
        return BENCHMARK
    share = f" part={part}" if part else ""
    first = 0 if part else 1000 * list(study.sets).index(name)
    return (
        f"{SYNTHETIC} people identities={2 * part.of if part else 2} images=4 size={SIZE} first={first} test=0.5{share}"
    )


def _narrow(study: Study, name: str) -> StudyRow:
    """Return a row whose network has the least width, if the network of its method has a configurable width."""
    row = study.rows[name]
    tree = tree_of(study, name, study.targets[0], study.seeds[0])
    options = find(tree["method"]).options.model_fields
    fields = getattr(options["network"].annotation, "model_fields", {}) if "network" in options else {}
    changes = ["method.minimum=2"] if "minimum" in options else []
    changes += [f"method.network.{field}={least}" for field, least in (("width", 8), ("heads", 2)) if field in fields]
    if "weights" in fields:  # no published weights fit a narrow network
        changes.append(f"method.network.weights={json_key(fields['weights'].default)}")
    if study.public is not None and tree["training"].get("pretrain") is not None:
        changes += ["training.pretrain.epochs=1", "training.pretrain.stop=null"]
    return row.model_copy(update={"set": [*row.set, *changes]})


DIFFERENCES = "differences.md"
"""File with each row's difference to the first row, with interval and verdict."""


def run_study(
    path: Path,
    out: Path,
    cache: Path,
    say: Say,
    *,
    changes: Sequence[str] = (),
    smoke: bool = False,
    runs: Path | None = None,
    workers: int = 1,
    root: Path | None = None,
    sets: Path | None = None,
    blind: bool = False,
    checks: Checks = USUAL,
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """Run the missing cells of a study, and write its tables; different targets and seeds may run in parallel.

    ``changes`` apply to every cell's recipe, after the changes of its row. ``runs`` is the directory of the cells:
    studies with rows of the same name and recipe can share it. ``root`` is a folder of datasets, in their original
    layout or prepared; missing sets are imported into ``sets``, by default a directory next to ``out``
    (``studies.roots``). ``blind`` reports figures of the sites' held-out images only and writes them to ``blind.md``:
    choices rest on these, and the target's figures stay unread. ``checks`` lists the problems of sets that do not stop
    a study. With ``cluster``, the nodes of a Ray cluster run the cells.
    """
    study = with_changes(load_study(path), changes)
    if blind:
        study = study.model_copy(update={"figures": list(BLIND), "paper": []})
    if smoke:  # renders all sets, unless a root provides real ones
        cells_of(study, out)  # validates the recipes of all cells
        count = len(study.rows)
        study = shrink_for_smoke(study, rendered=root is None)
        say(f"smoke test: {len(study.rows)} of {count} rows; the others differ only in numbers or data")
    cells = cells_of(study, runs or out / "cells")
    if root is not None:
        cells = on_root(study, cells, Root(root, sets or out.parent / "sets", workers, few=smoke), say)
    elif sets is not None:
        raise UserError("--sets", "is the directory for sets imported from --root; give --root, too")
    # All data is checked before the first cell trains, because a study may run for days.
    remedy = "; --root DIR finds and imports the datasets" if study.imports and root is None else ""
    for cell in cells:
        if not (cell.out / METRICS).exists():
            try:
                check_entries(cell.recipe)
            except UserError as error:
                place = f"{cell.row}, target {cell.target}: {error.place}"
                raise UserError(place, f"{error.message}{remedy}") from error
    changed = [(cell, difference) for cell in cells if (difference := _difference_to_run(cell))]
    if changed:
        cell, difference = changed[0]
        raise UserError(
            str(cell.out),
            f"was started with another recipe ({difference}), as were {format_count(len(changed), 'cell')} in all;"
            " give the changed row another name, or delete the directories of its cells",
        )
    if cluster is None:
        finished = run_here(groups_of(cells), cache, workers, checks, say)
    else:
        prepare_ray()
        from fedvisage.studies.on_ray import run_on_cluster

        finished = run_on_cluster(cells, cluster, cache, checks, say)
    results, failures = list[dict[str, Any]](), list[tuple[str, Exception]]()
    for cell, metrics in finished:
        if isinstance(metrics, Exception):
            failures.append((cell.title, metrics))
            say(f"failed: {cell.title}: {metrics}")
            continue
        figures = {name: value_of(metrics, name) for name in study.figures}
        members = {} if blind else metrics.parts("members")  # their figures are on the target
        results.append(
            figures
            | {"row": cell.row, "target": cell.target, "seed": cell.seed, "sites": metrics["sites"]}
            | {
                "members": {
                    member: {name: value_of(part, name) for name in study.figures} for member, part in members.items()
                }
            }
        )
        values = [f"{name} {scale(name) * value:.1f}" for name, value in figures.items() if value is not None]
        position = f"{len(results)}/{len(cells)}  {cell.row:{max(map(len, study.rows))}} target {cell.target}"
        say("  ".join([position, f"seed {cell.seed}", *values]))
    if failures:
        title, first = failures[0]
        summary = f"{len(failures)} of {format_count(len(cells), 'cell')} failed, the first one {title}"
        advice = "after a correction the same command runs these cells"
        if isinstance(first, UserError):
            raise UserError(first.place, f"{first.message} ({summary}; {advice})") from first
        raise RunFailed(f"{summary}: {first}; {advice}") from first
    # Groups finish in any order; sorting makes the table independent of it.
    results.sort(key=lambda result: (result["seed"], result["target"]))
    table = summarise(study, results)
    out.mkdir(parents=True, exist_ok=True)
    _write(study, table, results, cells, out, blind)
    return table


def _difference_to_run(cell: Cell) -> str:
    """Return how the recipe of an earlier run in the cell's directory differs from the cell's; empty without one."""
    directory = RunDirectory(cell.out)
    if not (directory / RECIPE).is_file():
        return ""
    return directory.difference_to(directory.with_recorded_values(without_workers(cell).recipe))


def _write(
    study: Study,
    table: dict[str, Any],
    results: Sequence[dict[str, Any]],
    cells: Sequence[Cell],
    out: Path,
    blind: bool,
) -> None:
    """Write the table in all forms, the differences and the page; for a blind study, only the table."""
    text, name = markdown(study, table), "blind" if blind else "table"
    write_json(out / f"{name}.json", table)
    write_atomically(out / f"{name}.md", text.encode())
    if blind:  # the page shows curves of the target
        return
    gaps = differences(study, results)
    forms = {
        "table.csv": as_csv(as_table(text)),
        "table.tex": as_latex(as_table(text)),
        DIFFERENCES: "" if gaps is None else as_markdown(gaps),
        "study.html": render(study, text, table, gaps, cells, out),
    }
    for file, form in forms.items():
        write_atomically(out / file, form.encode())


# The demonstration: FedPAD and FedFR with baselines at toy size, from rendered faces to a report.


def demonstrate(out: Path, cache: Path, say: Say, course: Say, *, resume: bool = False) -> None:
    """Run the packaged studies, then write every run's report and a contact sheet of every set.

    ``say`` receives the results, ``course`` the progress in between. With two cores, the study of recognition runs in a
    process of its own beside the study of attack detection; the results are the same.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the demo in it")
    course("Rendering faces and attacks, then training four methods on three sites.")
    people = (out / "people", "people.yaml", cache)
    if cores() == 1:
        results = [_run_packaged(out, "study.yaml", cache, course)]
        course("Rendering people, then training two recognition methods at three sites.")
        results.append(_run_packaged(*people, course))
    else:
        course("At the same time, rendering people, and training two recognition methods at three sites.")
        with worker_processes(1) as pool:
            with block_signals():
                beside = pool.submit(_run_packaged, *people)
            results = [_run_packaged(out, "study.yaml", cache, course)]
            results.append(beside.result())
    for lines in results:
        say("\n".join(lines))


def _run_packaged(out: Path, study: str, cache: Path, course: Say = discard) -> list[str]:
    """Run a packaged study; return its table, and the paths of its pictures and reports."""
    with as_file(files("fedvisage.studies") / study) as path:
        run_study(path, out, cache, course)
        sets = load_study(path).sets
    reports = [write_report(run, cache) for run in sorted((out / "cells").iterdir())]
    (out / "pictures").mkdir(exist_ok=True)
    for entry, name in {without_part(entry)[0]: name for name, entry in sets.items()}.items():
        contact_sheet(PreparedSet.open(resolve(entry, cache))).save(out / "pictures" / f"{name}.png")
    return [
        (out / "table.md").read_text(encoding="utf-8"),
        f"table:    {out / 'table.md'}",
        f"pictures: {out / 'pictures'} (examples from each set)",
        *(f"report:   {report}" for report in reports),
    ]

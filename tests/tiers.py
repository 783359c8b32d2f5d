"""The tests that `make test` and `make quick` leave out, and the distribution of tests over workers.

`make test` shows that everything works: every method trains, a federation of processes gives the bytes of one process,
and bad input is refused. It runs every test of less than 0.7 seconds, and of the longer ones those in ``KEPT``.
`long_tests.txt` names the longer ones, by function or by file; only `make test-all` runs all of them.
``python -m tests.tiers LOG`` writes that list anew from the output of
``python -m pytest -p no:xdist -m "not slow and not browser" --durations=0`` on an idle machine.
``python -m tests.tiers LOG --add`` keeps what the list has, for a log of the tests of `make test` alone.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

WHOLE = (
    *("cards/", "contract/", "distributed/", "faults/", "audit/", "studies/", "campaigns/", "api/", "starts/"),
    "upgrade/",
    *("report/", "render/sets/", "device/web/", "datasets/protocols/", "datasets/people/", "runs/", "parity/"),
    *("cli/", "datasets/test_make.py", "datasets/importers/test_pipeline.py", "base/test_extensions.py"),
    *("device/gallery/test_gallery_killed.py", "device/test_", "device/service/", "tasks/"),
    *("federation/test_", "federation/protections/", "federation/wire/test_wire_weights.py"),
    *("federation/privacy/test_accountant.py", "federation/privacy/test_private_clustering.py"),
    *("methods/test_algorithms_on_models.py", "methods/test_split.py", "methods/test_leakage.py"),
    *("methods/test_fedbn.py", "methods/test_fedma_passes.py", "methods/test_adapters_in_runs.py"),
    *("methods/test_holding_a_start.py", "methods/test_keeping_a_start_of_faces.py"),
    *("test_documentation.py", "test_processors.py", "test_shipped.py", "test_wheel.py", "test_website.py"),
    *("test_schemas.py", "test_broad.py", "test_layers.py", "test_tiers.py", "test_toy_runs.py"),
)
"""Prefixes of tests of whole recipes and processes, and of long computations, which `make quick` leaves out."""

LONG = ("distributed/", "studies/", "contract/", "faults/", "audit/")
"""Prefixes of long tests, which start first, so that none of them runs alone at the end."""

SPREAD = (
    *("contract/test_every_method.py", "contract/test_null_", "faults/test_killed.py", "runs/test_run.py"),
    *("methods/test_algorithms_on_models.py", "studies/test_studies.py", "federation/test_", "runs/test_workers.py"),
    "cards/",
)
"""Files whose tests share no costly fixture, so that all workers share them. Other files stay with one worker."""

FEDERATED = tuple(
    f"distributed/test_{name}.py" for name in ("own_files", "foreign_kits_and_code", "same_bytes", "operator_commands")
)
"""Files whose tests share federations; one worker runs them."""

SECONDS = 0.7
"""A test function is long if a call of it takes this time on average."""

LONG_TESTS = Path(__file__).with_name("long_tests.txt")
CONTRACT = "contract/test_every_method.py::"
REPRESENTATIVES = ("fedpad", "fedsis", "privacyface")
"""Averaging of an attack detector, split learning, and recognition with two exchanges per round."""

KEPT: dict[str, tuple[str, ...]] = {
    "cli/test_command_line.py": (),
    "cli/test_gallery_commands.py": (),
    CONTRACT + "test_a_run_stopped_after_every_round_and_resumed_equals_an_uninterrupted_one": REPRESENTATIVES,
    CONTRACT + "test_another_seed_gives_another_model_and_keeps_the_global_random_state": REPRESENTATIVES,
    CONTRACT + "test_the_order_of_sites_in_the_recipe_does_not_matter": REPRESENTATIVES,
    "contract/test_null_algorithms.py::test_algorithm_without_its_own_term_is_fedavg": ("sphere20-scaffold",),
    "contract/test_null_recognition.py::test_fedfr_without_its_three_modules_is_fedavg": (),
    "contract/test_null_privacyface.py::test_privacyface_without_clusters_and_public_fine_tuning_is_fedavg": (),
    "distributed/test_same_bytes.py::test_bytes_equal_those_of_one_process": ("fedpad",),
    "federation/protections/test_dp.py::test_without_noise_and_with_a_large_bound_the_run_is_fedavg": (),
    "federation/test_secure_differencing.py::test_a_second_run_with_other_sites_is_refused": (),
    "runs/test_workers.py::test_parallel_sites_give_the_bytes_of_sequential_sites": (),
    "tasks/pad/adapt/test_target.py::test_recipe_adapts_and_records_the_outcome": (),
    "test_documentation.py::test_the_commands_of_the_readme_run_one_after_another": (),
    "tasks/test_operating_points.py": (),
    "test_documentation.py::test_the_python_of_the_readme_runs": (),
    "test_style.py::test_constructions_that_read_as_translated_are_rare": (),
    "test_layers.py::test_imports_lead_to_lower_layers_only": (),
    "upgrade/test_stored_runs.py::test_a_stored_run_is_reported": (),
}
"""Long tests that `make test` runs, or whole files: with these parameters only, or with all if there are none."""


def long_tests() -> frozenset[str]:
    """Return the functions and files in `long_tests.txt`."""
    return frozenset(LONG_TESTS.read_text(encoding="utf-8").split())


def is_left_to_test_all(name: str, long_ones: frozenset[str]) -> bool:
    """Return whether only `make test-all` runs the test ``name``, such as ``nn/test_x.py::test_y[z]``."""
    function, _, parameters = name.removesuffix("]").partition("[")
    file = function.partition("::")[0]
    if function in KEPT:
        return bool(KEPT[function]) and parameters not in KEPT[function]
    return file not in KEPT and not long_ones.isdisjoint({function, file})


def measure_long_tests(log: str) -> list[str]:
    """Return the functions of a log of ``--durations=0`` whose calls take ``SECONDS`` or longer on average.

    A file is named instead of its functions if what they share takes ten times as long to set up, except the file that
    shows that every method trains.
    """
    calls: dict[str, list[float]] = defaultdict(list)
    setups: dict[str, float] = defaultdict(float)
    for seconds, phase, name in re.findall(r"^ *([\d.]+)s (call|setup) +tests/(.+)$", log, re.MULTILINE):
        function = name.partition("[")[0].rstrip()
        if phase == "call":
            calls[function].append(float(seconds))
        else:
            setups[function.partition("::")[0]] += float(seconds)
    files = {file for file, seconds in setups.items() if seconds >= 10 * SECONDS and not CONTRACT.startswith(file)}
    functions = {name for name, times in calls.items() if sum(times) / len(times) >= SECONDS}
    return sorted(files | {name for name in functions if name.partition("::")[0] not in files})


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    names = {*measure_long_tests(text), *(long_tests() if "--add" in sys.argv else ())}
    LONG_TESTS.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")

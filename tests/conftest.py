"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.toy import THREADS, make_sets, run_toy, tree
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

torch.set_num_threads(THREADS)
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a target, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="session")
def pad_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of attack detection, of one round."""
    out = tmp_path_factory.mktemp("device") / "pad-run"
    run_toy(tree(sets, training__rounds=1), out)
    return out


@pytest.fixture(scope="session")
def pad(pad_run: Path) -> Path:
    """The same, exported by the command."""
    out = pad_run.with_name("pad")
    result = CliRunner().invoke(app, ["export", str(pad_run), str(out)])
    assert result.exception is None, result.exception
    return out


@pytest.fixture(scope="session")
def recognition_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recognition model that was trained in one place."""
    out = tmp_path_factory.mktemp("device") / "recognition-run"
    run_toy(tree(sets, "pretrained", evaluation__recognition={"fmr": 0.1}), out)
    return out


@pytest.fixture(scope="session")
def recognition(recognition_run: Path) -> Path:
    """The same, exported."""
    out = recognition_run.with_name("recognition")
    export(open_model(recognition_run), out, cache=recognition_run.with_name("cache"))
    return out


WHOLE = (
    *("contract/", "distributed/", "faults/", "hostile/", "audit/", "studies/", "soak/", "door/", "datasets/rendered/"),
    *("cli/test_command_line.py", "cli/test_gallery_verbs.py", "cli/test_predict.py", "cli/test_signs_of_life.py"),
    *("datasets/test_make.py", "parity/test_algorithms.py", "report/test_page.py", "runs/test_run.py"),
    *("federation/test_secure_run.py", "federation/test_admission.py", "federation/test_rounds.py"),
    "federation/test_secure_differencing.py",
    *("federation/test_robust.py", "federation/protections/test_dp.py", "federation/protections/test_poison.py"),
    *("federation/wire/test_wire_weights.py", "methods/test_algorithms_on_models.py", "methods/test_split.py"),
    *("methods/test_leakage.py", "methods/test_fedbn.py", "methods/test_fedma_passes.py", "tasks/test_overlap.py"),
    *("tasks/recognition/test_recognition.py", "tracking/", "workers/test_processes.py", "conversion/", "web/"),
    *("device/test_adaptation.py", "device/test_assessment.py", "runs/test_workers.py"),
    *("methods/test_adapters_in_runs.py", "datasets/importers/test_pipeline.py", "tasks/pad/adapt/test_target.py"),
    *("tasks/test_mixed_crops.py", "tasks/pad/test_evaluation.py", "report/test_page_in_browser.py"),
    *("tasks/pad/test_as_published.py", "test_website.py", "parity/test_fedgpad_rounds.py", "device/test_exported.py"),
    *("device/test_device_page.py", "device/test_device_pipeline.py", "privacy/test_accountant.py"),
    *("datasets/protocols/test_protocols_on_copies.py", "cli/test_hostile_runs.py", "runs/test_snapshots.py"),
    *("methods/test_face_adapters_in_runs.py", "tasks/test_exact_statistics.py", "cli/test_documented_prediction.py"),
    *("test_documentation.py", "test_extensions.py", "test_processors.py", "test_shipped.py", "test_wheel.py"),
)
"""Below this folder: tests that run whole recipes or processes again and again, or compute for long."""


LONG = ("distributed/", "studies/", "contract/", "faults/", "audit/")
"""Files of tests that take long: begun last, one of them would go on alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make quick`` leaves out, and begin with what takes long."""
    root = Path(__file__).parent
    names = {item.path: item.path.relative_to(root).as_posix() for item in items}
    for item in items:
        if names[item.path].startswith(WHOLE):
            item.add_marker("whole")
    items.sort(key=lambda item: not names[item.path].startswith(LONG))

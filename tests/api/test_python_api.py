"""The Python API of ``import fedvisage as fv``, used as in the README and notebooks."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refusals import refused
from tests.toy import make_set, tree

import fedvisage as fv
from fedvisage.api import StudyResult
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Order, Reply
from fedvisage.methods import METHODS
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.algorithms.fedprox import fedprox
from fedvisage.methods.models.resnet18 import MODEL
from fedvisage.metrics.threshold import Threshold
from fedvisage.tasks.scoring import LIMIT


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> fv.Run:
    return fv.run(tree(sets, training__rounds=2), out=tmp_path_factory.mktemp("api") / "run", quiet=True)


@pytest.fixture(scope="module")
def people(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> fv.Run:
    return fv.run(tree(sets, "fedavg", training__rounds=1), out=tmp_path_factory.mktemp("api") / "people", quiet=True)


def test_import_loads_no_torch_and_offers_every_name() -> None:
    assert run_python("import sys, fedvisage; print('torch' in sys.modules)").strip() == "False"
    assert [name for name in fv.__all__ if not hasattr(fv, name)] == []


@pytest.mark.long
def test_methods_is_callable_before_and_after_importing_its_package() -> None:
    code = "import fedvisage as fv; print(len(fv.methods())); import fedvisage.methods; print(len(fv.methods()))"
    assert run_python(code).split() == [str(len(METHODS))] * 2
    assert fv.methods()["fedpad"].title == "FedPAD"
    assert fv.models()["vit-h"].task == "pad"


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        fv.nothing_like_it  # noqa: B018


def test_run_returns_its_files_as_values(run: fv.Run) -> None:
    assert run.metrics == json.loads((run.directory / "metrics.json").read_text())
    lines = (run.directory / "rounds.jsonl").read_text().splitlines()
    assert [row["round"] for row in run.rounds] == [json.loads(line)["round"] for line in lines] == [1, 2]
    assert len(run.ledger) == len((run.directory / "ledger.jsonl").read_text().splitlines())
    first = run.scores[0]
    assert first["label"] == 1
    assert first["probability"] == pytest.approx(1 / (1 + np.exp(-first["logit"])), abs=1e-5)
    assert run.recipe.training.rounds == 2
    assert "HTER" in str(run)


@pytest.mark.long
def test_notebook_shows_the_report_and_redraws_a_missing_one(run: fv.Run) -> None:
    page = run._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "<script" not in page  # it is escaped, within the frame's attribute
    run.report().unlink()
    assert run.report().stat().st_size > 10_000


def test_opened_model_repeats_the_stored_scores(run: fv.Run, sets: Mapping[str, Path]) -> None:
    images = PreparedSet.open(sets["U"]).images
    logits = run.model.score(torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).contiguous())
    np.testing.assert_allclose(np.clip(logits, -LIMIT, LIMIT), [row["logit"] for row in run.scores], atol=1e-4)


def test_face_is_live_from_the_threshold_on(run: fv.Run, sets: Mapping[str, Path]) -> None:
    images = torch.from_numpy(np.array(PreparedSet.open(sets["U"]).images)).permute(0, 3, 1, 2).contiguous()
    model, scores = run.model, run.model.score(images)
    assert model.threshold == model.thresholds[""]
    assert model.threshold.value == run.metrics["threshold"]
    assert model.is_live(images).tolist() == (scores >= model.threshold.value).tolist()
    at_the_lowest = replace(model, saved=replace(model.saved, thresholds={"": Threshold(min(scores), "fixed", 0, 0)}))
    assert at_the_lowest.is_live(images).all()


def test_model_without_a_single_threshold_names_the_remedy(run: fv.Run, people: fv.Run) -> None:
    by_site = replace(run.model, saved=replace(run.model.saved, thresholds=dict.fromkeys("BA", run.model.threshold)))
    with pytest.raises(fv.UserError, match=r"one threshold per site; use model.thresholds \(A, B\)"):
        by_site.is_live(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(fv.UserError, match=r"evaluation\.threshold"):
        assert replace(run.model, saved=replace(run.model.saved, thresholds={})).threshold
    with pytest.raises(fv.UserError, match="embed"):
        people.model.is_live(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


def test_arrays_and_tensors_get_equal_scores(run: fv.Run, sets: Mapping[str, Path]) -> None:
    pictures = PreparedSet.open(sets["U"]).images[:4]
    tensor = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2)
    assert run.model.score(pictures).tolist() == run.model.score(tensor).tolist()


def test_network_is_a_module_that_computes_the_score(run: fv.Run) -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    net = run.model.net
    assert isinstance(net, torch.nn.Module)
    assert not net.training
    with torch.no_grad():
        np.testing.assert_allclose(net(images.float() / 255).numpy(), run.model.score(images), atol=1e-5)
    saved = sum(value.numel() for value in run.model.saved.finished.values())
    assert sum(value.numel() for value in net.state_dict().values()) == saved


def test_embeddings_have_unit_length(people: fv.Run) -> None:
    faces = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    features = people.model.embed(faces)
    assert features.shape == (3, 16)
    np.testing.assert_allclose(features.norm(dim=1).numpy(), 1, atol=1e-5)


def test_opened_model_is_evaluated_like_the_run(run: fv.Run, tmp_path: Path) -> None:
    again = fv.evaluate(fv.open(run.directory))
    for name in ("hter", "eer", "auc"):
        assert again[name] == run.metrics[name]
    other = make_set(tmp_path / "other", "other", 77)
    assert fv.evaluate(run, other, out=tmp_path / "evaluated")["target"] == "other"
    assert (tmp_path / "evaluated" / "scores.csv").exists()


@pytest.mark.long
def test_method_transport_and_sets_can_be_passed_in(sets: Mapping[str, Path], tmp_path: Path) -> None:
    called_sites: list[str] = []

    class ListeningTransport(LocalTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            called_sites.extend(orders)
            yield from super().call(orders)

    mine = replace(fv.methods()["fedpad"], name="mine", title="Mine")
    own = PreparedSet.open(sets["C"])
    content = tree(sets, training__rounds=1)
    content["data"]["sites"] = {"A": "nowhere", "B": str(sets["B"])}
    result = fv.run(
        content, out=tmp_path / "run", method=mine, transport=ListeningTransport, data={"A": own}, quiet=True
    )
    assert result.metrics["method"] == "mine"
    assert result.metrics["sites"] == ["A", "B"]
    assert {"A", "B"} <= set(called_sites)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["data.sites.A"] == own.digest
    assert result.model.recipe.method.name == "mine"
    assert result.recipe.data.sites["A"] == str(own.path.resolve())


def test_options_of_a_passed_method_are_validated(sets: Mapping[str, Path]) -> None:
    def content(**section: object) -> dict[str, object]:
        return {**tree(sets), "method": section}

    mine = replace(fedprox(MODEL), name="mine")
    assert fv.load("demo/fedpad", {"method.mu": 5.0}, method=mine).method.mu == 5.0  # type: ignore[attr-defined]
    assert fv.load(content(name="moon", temperature=0.4), method=mine).method.name == "mine"  # drops the rest
    for changes, recipe in (
        ({"method.mew": 5.0}, content(name="fedpad")),
        ({}, content(name="mine", mew=5.0)),
        ({}, content(name="fedpad", mew=5.0)),
        ({"method.temperature": 0.4}, content(name="moon")),  # an explicit change stays
    ):
        with pytest.raises(fv.UserError) as caught:
            fv.load(recipe, changes, method=mine)
        assert caught.value.place in ("recipe.method.mew", "recipe.method.temperature")
    with refused("recipe.method.weigth", "did you mean weight?"):
        fv.load("demo/fedpad", {"method.weigth": "uniform"}, method=mine)


@pytest.mark.long
def test_passed_model_names_its_network() -> None:
    def network(model: str, **settings: str) -> str:
        changes = {"method.network": settings}
        recipe = fv.load("demo/fedavg-recognition", changes, method=fedprox(fv.models()[model]))
        return str(recipe.method.network.name)  # type: ignore[attr-defined]

    assert network("timm-embedding", arch="mobilenetv3_small_050") == "timm-embedding"
    assert network("iresnet18") == "iresnet18"
    assert network("iresnet18", name="sphere20") == "sphere20"
    with refused("recipe.method.network", "arch"):
        network("timm-embedding")


def test_changed_method_cannot_take_a_listed_name() -> None:
    changed = replace(METHODS["fedpad"], calls={"train": fedavg.training_call(zero_loss, "model")})
    with refused("method", "fedpad", "dataclasses.replace"):
        fv.run("demo/fedpad", method=changed)
    assert fv.load("demo/fedpad", method=METHODS["fedpad"]).method.name == "fedpad"
    assert fv.load("demo/fedpad", method=fedprox(MODEL)).method.name == "fedprox"  # equal to the listed method


def zero_loss(site: fv.Site, batch: fv.Batch) -> torch.Tensor:
    """Return a loss without gradient."""
    loss: torch.Tensor = site.net["model"](batch.images).float().sum() * 0
    return loss


@pytest.mark.long
def test_run_records_the_source_of_a_passed_method(run: fv.Run, sets: Mapping[str, Path], tmp_path: Path) -> None:
    assert "method" not in json.loads((run.directory / "environment.json").read_text())
    content = tree(sets, training__rounds=2)
    mine = replace(METHODS["fedpad"], name="mine")
    other = replace(mine, calls={"train": fedavg.training_call(zero_loss, "model")})
    runs = [
        fv.run(content, out=tmp_path / name, method=method, quiet=True)
        for name, method in (("mine", mine), ("other", other))
    ]
    first, second = (json.loads((result.directory / "environment.json").read_text())["method"] for result in runs)
    assert (first["module"], second["module"]) == ("fedvisage", __name__)
    assert second["code"] == f"{__name__}.zero_loss"
    assert first["sha256"] != second["sha256"]
    assert second["sha256"] in runs[1].report().read_text()
    assert [row["runs"] for row in fv.compare([run, *runs]).values()] == [1, 1, 1]
    (tmp_path / "other" / "metrics.json").unlink()
    with refused("environment.json", "method"):
        fv.run(content, out=tmp_path / "other", method=mine, resume=True, quiet=True)


def test_data_replaces_existing_entries_of_the_recipe(sets: Mapping[str, Path]) -> None:
    with refused("data", "'A', 'public'", "O, C, I, target"):
        fv.run("demo/fedpad", data={"A": sets["A"], "O": sets["A"], "public": sets["B"]})
    content = tree(sets)
    content["data"]["sites"] = {"client[1-2]": f"{sets['A']}*"}
    with refused("data", "client3", "client1, client2"):
        fv.run(content, data={"client3": sets["A"]})


def test_objects_print_in_a_few_lines(run: fv.Run, people: fv.Run, sets: Mapping[str, Path]) -> None:
    assert repr(run) == f"Run({str(run.directory)!r})"
    assert repr(fv.Run(run.directory, fv.methods()["fedpad"])).endswith(
        "method=Method(name='fedpad', title='FedPAD', task='pad'))"
    )
    assert repr(fv.models()["resnet18"]) == "Model(name='resnet18', title='ResNet-18', task='pad')"
    assert repr(PreparedSet.open(sets["A"])) == f"PreparedSet({str(sets['A'])!r}, 36 images of 32×32)"
    assert repr(StudyResult(Path("runs/table"), {})) == "StudyResult('runs/table')"
    for listing in (fv.methods(), fv.models()):
        assert len(repr(listing).splitlines()) < 12
        assert set(listing) == set(re.findall(r"[\w-]+(?=,|$)", repr(listing), flags=re.MULTILINE))
    facts = dict(line.split(maxsplit=1) for line in repr(run.model).splitlines())
    weights = sum(value.numel() for value in run.model.saved.finished.values())
    assert facts == {
        "model": "FedPAD (pad)",
        "directory": str(run.directory),
        "input": "32×32 pixels, rgb+hsv",
        "training": "3 sites, 2 rounds",
        "threshold": f"{run.metrics['threshold']:.3f} (source-eer)",
        "weights": f"{weights:,}",
    }
    assert "FedAvg (recognition) (recognition)" in repr(people.model)


def test_notebook_shows_a_model_as_a_table(run: fv.Run) -> None:
    page = run.model._repr_html_()
    assert page.startswith("<table><tr><th>model</th><td>FedPAD (pad)</td></tr>")
    assert len(page) < 1000


def test_unknown_method_or_model_suggests_the_nearest() -> None:
    with refused("'fedpda'", "fedpad"):
        fv.methods()["fedpda"]
    with refused("'resnet'", "resnet18"):
        fv.models()["resnet"]
    assert fv.methods().get("fedpda") is None


@pytest.mark.long
def test_interrupted_run_is_resumed_from_python(sets: Mapping[str, Path], tmp_path: Path) -> None:
    class FailingTransport(LocalTransport):
        def commit(self, generation: int) -> dict[str, int]:
            if generation == 2:
                raise fv.RunFailed("the power went off")
            return super().commit(generation)

    recipe = fv.load(tree(sets))
    with pytest.raises(fv.RunFailed):
        fv.run(recipe, out=tmp_path / "broken", transport=FailingTransport, quiet=True)
    fv.run(recipe, out=tmp_path / "broken", resume=True, quiet=True)
    fv.run(recipe, out=tmp_path / "whole", quiet=True)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("broken", "whole"))
    assert first == second


@pytest.mark.long
def test_runs_are_compared_as_tables_and_as_values(run: fv.Run, sets: Mapping[str, Path], tmp_path: Path) -> None:
    second = fv.run(tree(sets, training__rounds=2), out=tmp_path / "b", changes={"runtime.seed": 1}, quiet=True)
    comparison = fv.compare([run, second.directory])
    (row,) = comparison.values()
    assert row["runs"] == 2
    assert row["figures"]["hter"]["mean"] == pytest.approx((run.metrics["hter"] + second.metrics["hter"]) / 2)
    assert str(comparison) == repr(comparison) == comparison._repr_markdown_()


def test_shipped_recipe_is_loaded_by_name_and_changed(tmp_path: Path) -> None:
    recipe = fv.load("demo/fedpad", {"training.rounds": 4, "method.weight": "examples"})
    assert recipe.training.rounds == 4
    assert recipe.method.weight == "examples"  # type: ignore[attr-defined]
    assert fv.load(recipe) == recipe


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: fv.load("demo/fedpda"), "demo/fedpda"),
        (lambda: fv.load({"method": "fedpda"}), "recipe.method.name"),
        (lambda: fv.load("demo/fedpad", {"training.rouns": 3}), "recipe.training.rouns"),
        (lambda: fv.open("/nowhere"), "/nowhere"),
        (lambda: fv.Run(Path("/nowhere")).metrics, "/nowhere/metrics.json"),
        (lambda: fv.Run(Path("/nowhere"))._repr_html_(), "/nowhere/metrics.json"),
        (lambda: fv.compare(["/nowhere"]), "/nowhere"),
    ],
)
def test_invalid_input_is_a_user_error(call: object, place: str) -> None:
    with refused(place):
        call()  # type: ignore[operator]


def test_model_states_its_input_and_task(run: fv.Run, people: fv.Run) -> None:
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with refused("images", "3, 32, 32", "3, 16, 32"):
        run.model.score(images[:, :, :16])
    with refused("images", "uint8", "float32"):
        run.model.score(images.float())
    with refused("images", "3, 32, 32", "32, 32, 3", "(1, 3, 32, 32)"):
        run.model.score(images.numpy())
    for wrong in (None, "one.png", [images]):
        with refused("images", "tensor", "array"):
            run.model.is_live(wrong)  # type: ignore[arg-type]
    with refused("faces", "tensor", "array"):
        people.model.embed("one.png")  # type: ignore[arg-type]
    with refused("model.embed", "model.score"):
        run.model.embed(images)
    with refused("model.score", "model.embed"):
        people.model.score(images)


@pytest.mark.long
def test_run_reports_its_rounds_unless_quiet(
    sets: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fv.run(tree(sets, training__rounds=1), out=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")
    fv.run(tree(sets, training__rounds=1), out=tmp_path / "loud")
    assert "round 1/1" in capsys.readouterr().out

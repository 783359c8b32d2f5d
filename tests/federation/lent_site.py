"""A site of a recognition run, as a method's call sees it."""

from pathlib import Path
from typing import Any

from tests.toy import Sets, open_run_data, recipe_of, tree

from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.site import Site
from fedvisage.methods import find
from fedvisage.nn.compute import resolve_compute


def site_of(sets: Sets, tmp_path: Path, number: int = 1, name: str = "fedfr", **changes: Any) -> Site:
    """Return site A of a recognition recipe in some round, with the network that it was lent."""
    content, method = tree(sets, name, **changes), find({"name": name})
    recipe, data = recipe_of(content), open_run_data(content, tmp_path)
    with seed_global_rng(0, "initial weights"):
        net = method.network(recipe)
    people, own = data.people, data.sites["A"]
    assert people is not None
    site = Site(
        "A",
        recipe,
        number,
        own.train,
        net,
        resolve_compute("cpu", "fp32"),
        {},
        {},
        public=people.public,
        releases=Releases(tmp_path / "releases"),
    )
    site.lent = site.tensors(*net)
    return site

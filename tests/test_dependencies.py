"""The ranges of dependencies: both ends are given, so that both can be tested."""

import pytest
from packaging.requirements import Requirement
from tests.dependencies import direct_requirements, pin_lowest


@pytest.mark.parametrize("requirement", list(direct_requirements()), ids=lambda requirement: requirement.name)
def test_dependency_has_a_lowest_and_a_highest_version(requirement: Requirement) -> None:
    operators = sorted(part.operator for part in requirement.specifier)
    assert operators in (["<", ">="], ["=="])
    pinned = Requirement(pin_lowest(requirement))
    assert [part.operator for part in pinned.specifier] == ["=="]
    assert requirement.specifier.contains(next(iter(pinned.specifier)).version)


def test_torch_and_development_dependencies_are_exempt() -> None:
    names = {requirement.name for requirement in direct_requirements()}
    assert {"numpy", "timm", "nvflare", "fastapi", "wandb"} <= names
    assert not {"fedvisage", "torch", "torchvision", "pytest", "mkdocs-material"} & names

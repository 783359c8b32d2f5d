"""Options of imports and rendered sets: declared once, and a misspelt one is refused wherever it is written."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.commands import output_of
from tests.packages import install
from tests.refusals import refused

from fedvisage.base.arguments import field_docstrings
from fedvisage.datasets.importing import import_dataset, read_spec
from fedvisage.datasets.options import ImportOptions, PeopleOptions, SynthesisOptions
from fedvisage.datasets.protocols.catalogue import PEOPLE, PROTOCOLS
from fedvisage.render.identities import Identities
from fedvisage.render.sets import Synthesis

IMPORTER = """
from fedvisage.datasets.report import ImportReport

def import_folder(source, destination, options, *, name, progress):
    assert (options.size, options.frames, name) == (32, "3", "S")
    return ImportReport(1, 1, 1, 1, {"bonafide": 1}, {"train": 1}, 0, 0, 0, ())
"""


@pytest.mark.parametrize(
    ("kind", "verb", "others"),
    [(ImportOptions, "import", ["few"]), (SynthesisOptions, "synth", []), (PeopleOptions, "people", [])],
)
def test_every_field_has_a_docstring_and_is_an_option_of_the_command(kind: Any, verb: str, others: list[str]) -> None:
    names = [field.name for field in fields(kind)]
    assert [*field_docstrings(kind)] == names
    help_text = output_of("data", verb, "--help")
    missing = [name for name in names if f"--{name.replace('_', '-')}" not in help_text]
    assert missing == others


@pytest.mark.parametrize(("options", "spec"), [(SynthesisOptions(), Synthesis("O")), (PeopleOptions(), Identities())])
def test_the_options_of_a_rendered_set_have_the_defaults_of_its_specification(options: Any, spec: Any) -> None:
    for field in fields(spec):
        assert (getattr(options, field.name) or None) == (getattr(spec, field.name) or None), field.name


@pytest.mark.parametrize("text", ["oulu-npu --sise 32", "oulu-npu --few 3", "oulu-npu --frames 1 size 32"])
def test_misspelt_option_of_an_import_string_is_refused(text: str) -> None:
    with refused("imports.O", "not an option of data import"):
        read_spec(text, "imports.O")


def test_misspelt_option_in_python_is_refused() -> None:
    misspelt: dict[str, Any] = {"sise": 32}
    with pytest.raises(TypeError, match="sise"):
        ImportOptions(**misspelt)


def test_unknown_source_of_boxes_is_refused() -> None:
    unknown: dict[str, Any] = {"boxes": "mine"}
    with refused("boxes", "detect", "dataset", "'mine'"):
        ImportOptions(**unknown)
    with refused("imports.O", "'mine'"):
        read_spec("lfw --boxes mine", "imports.O")


@pytest.mark.parametrize("protocol", [*PROTOCOLS.values(), *PEOPLE.values()], ids=lambda protocol: protocol.name)
def test_the_imports_of_every_protocol_have_known_options(protocol: Any) -> None:
    for name, spec in protocol.sets.items():
        read_spec(f"{spec.kind} {spec.options}", name)


def test_importer_of_another_package_receives_the_options(tmp_path: Path) -> None:
    directories = tmp_path / "in", tmp_path / "out"
    with install(tmp_path / "package", {"datasets": {"other": "own:import_folder"}}, {"own.py": IMPORTER}):
        options = ImportOptions(size=32, frames="3")
        lines = import_dataset("other", *directories, lambda _: None, name="S", options=options)
        assert lines[0].startswith("1 image of 1 subject")
        with refused("--frames", "'6,'"):
            import_dataset("other", *directories, lambda _: None, name="S", options=ImportOptions(frames="6,"))

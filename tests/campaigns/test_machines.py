"""The federation of a soak: kits that are whole, each on its machine's disk, sites at the end of their cables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from campaigns.soak.__main__ import SITES, Conduct
from campaigns.soak.table import Soak

from fedvisage.nvflare.certificates import check, credentials_in
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import open_kit


def test_each_machine_has_its_kit_and_each_site_its_cable(sets: Mapping[str, Path], tmp_path: Path) -> None:
    conduct = Conduct(tmp_path, Soak(1, 0, len(SITES), 1), dict.fromkeys(SITES, sets["A"]), {})
    conduct.build()
    assert set(conduct.units) == {"server", *SITES}
    ports = set[int]()
    for name, unit in conduct.units.items():
        kit = open_kit(unit.disk / "kit", "server" if name == "server" else "site")
        check(credentials_in(kit.path, at_server=name == "server"), "localhost" if name == "server" else name)
        assert str(kit.path) in unit.command
        if name != "server":
            ports.add(address_in(kit).port)
            assert address_in(kit).port == conduct.cables[name].port
            assert str(sets["A"]) in unit.command
    assert len(ports) == len(SITES)
    for cable in conduct.cables.values():
        cable.close()
    open_kit(tmp_path / "kits" / "operator", "operator")

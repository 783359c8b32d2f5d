"""The list of datasets of people that can be read as they are distributed."""

from __future__ import annotations

from fedvisage.datasets.people import benchmarks, bin, folders, ijb, nist, rec, rfw
from fedvisage.datasets.people.layout import Layout

LAYOUTS: dict[str, Layout] = {
    layout.kind: layout
    for layout in (
        rec.LAYOUT,
        folders.VGGFACE2,
        folders.BUPT,
        folders.DIGIFACE,
        bin.LAYOUT,
        benchmarks.LFW,
        benchmarks.CALFW,
        benchmarks.CPLFW,
        benchmarks.CFP,
        benchmarks.AGEDB,
        rfw.LAYOUT,
        ijb.B,
        ijb.C,
        nist.B,
        nist.C,
    )
}

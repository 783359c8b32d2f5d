"""Measure detectors on real attacks: published starts, texture, fusion, and training from a start.

    python -m benchmarks.real DIR [--out WORK] [--scores FOLDER] [--seeds 3] [--groups 14] [--tables fusion]
    python -m benchmarks.real DIR --protocol [--blind] [--records FOLDER] [--trainings fedpad,single]

DIR contains checkouts of the development repositories, one folder OWNER+NAME each, of the published detectors and
of a published recogniser (`sites.py`, `scores.py`, `author.py`). Prepared sets, starts and runs go to WORK, and a
later call reuses them. No picture, weight or score of a single picture belongs in the repository.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real import families
from benchmarks.real.cells import Records, resolution_notices, run_missing
from benchmarks.real.protocol import FURTHER, Plan
from benchmarks.real.scores import write_scores
from benchmarks.real.sites import SITES
from benchmarks.real.tables import TABLES, Measurements, missing_folders
from benchmarks.real.verdicts import Table
from fedvisage.base.errors import UserError
from fedvisage.data.prepared import PreparedSet

RECORDS = Path(__file__).parent / "records"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/real"))
    parser.add_argument("--scores", type=Path, help="also write the scores of every picture into this folder")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=len(SITES), help="leave out groups of sites, to train less often")
    parser.add_argument("--protocol", action="store_true", help="run the missing cells of the plan, print its verdicts")
    parser.add_argument("--blind", action="store_true", help="hide target figures until all runs have ended")
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder with the records of the protocol")
    parser.add_argument(
        "--trainings", default="", help="run these alone; trainings that share models belong in one process"
    )
    options = parser.parse_args()
    if options.protocol:
        trainings = options.trainings.split(",") if options.trainings else []
        return follow_protocol(
            options.directory, options.out, options.records, blind=options.blind, trainings=trainings
        )
    if missing := missing_folders(options.directory):
        print(f"skipped: {options.directory} has no {missing[0]}")
        return 0
    measurements = Measurements(options.directory, options.out, options.seeds, options.groups)
    if options.scores is not None:
        write_scores(options.scores, measurements.published, measurements.labels)
    for name in options.tables.split(","):
        print("", *measurements.tables(name), sep="\n", flush=True)
    return 0


def follow_protocol(
    directory: Path,
    out: Path,
    folder: Path,
    *,
    blind: bool,
    plan: Plan = FURTHER,
    trainings: Sequence[str] = (),
) -> int:
    """Run the missing cells at the lowest priority if the pictures are here, then print table and verdicts."""
    try:
        if unknown := sorted({*trainings} - {*plan.trainings}):
            raise UserError("--trainings", f"has no {unknown[0]}; the plan has {', '.join(plan.trainings)}")
        records = Records(folder, plan)
        sets = out / "protocol"
        if missing := families.missing_folders(directory):
            print(f"no runs: {directory} has no {missing[0]}")
        else:
            os.nice(19)
            families.prepare_sites(directory, sets)
            plain = {site: PreparedSet.open(sets / families.PLAIN / site) for site in plan.sites}
            print(*families.near_copy_notices(plain), *resolution_notices(plan, plain), sep="\n", flush=True)
            for line in run_missing(plan, records, sets, out / "protocol-runs", trainings):
                print(line, flush=True)
        print("", *Table(plan, records).lines(blind=blind), sep="\n")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{records.seconds / 3600:.1f} core-hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())

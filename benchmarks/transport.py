"""What an exchange between machines costs: our rounds and split steps over NVFlare, beside a bare NVFlare program."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import Measurement, middle, rendered
from benchmarks.transport_program import DATA, NAME, REPEATS, RESULT, MeasuredSite, MeasuringServer
from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed
from fedvisage.base.files import write_json
from fedvisage.methods import read_method
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.kits import SERVER_CLASS, SITE_CLASS, Kit, own_settings
from fedvisage.nvflare.operator import connect_to_server
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

SITES, SIZE, BOUND, LIMIT = ("A", "B", "C"), 32, 1.2, 1800.0
PROGRAMS = {
    SERVER_CLASS: f"{MeasuringServer.__module__}.{MeasuringServer.__name__}",
    SITE_CLASS: f"{MeasuredSite.__module__}.{MeasuredSite.__name__}",
}


def measure(cache: Path) -> Measurement:
    """Send a ResNet-18 to three sites and back, and 19 MB to each of three sites in turn and back.

    The repetitions of our program and of a bare one take turns in one job, over the same connections with mutual TLS.
    The medians of whole times are judged. Beside them stands the overhead alone, from the least times over NVFlare less
    those of the same work in one process.
    """
    times = _seconds(rendered(cache, "O", 4, SIZE))
    least = {way: min(seconds) for way, seconds in times.items()}
    ratios = {what: median(times[f"{what}, ours"]) / median(times[f"{what}, bare"]) for what in ("round", "step")}
    said = "; ".join(
        f"{what} {ratios[what]:.2f} ({middle(times[f'{what}, ours'])} / {middle(times[f'{what}, bare'])}; overhead "
        f"alone, minima, {_overhead(least, what, 'ours', 'here') / _overhead(least, what, 'bare', 'bare here'):.2f})"
        for what in ratios
    )
    return Measurement(
        "over NVFlare against a bare NVFlare program (time): a FedAvg round of ResNet-18, and a split step of 19 MB "
        "each way, three sites, mutual TLS",
        f"≤ {BOUND:g}",
        f"{said}; medians of {REPEATS}, least and largest",
        all(ratio <= BOUND for ratio in ratios.values()),
    )


def _overhead(least: dict[str, float], what: str, over: str, here: str) -> float:
    """Return the least time over NVFlare less that of the same work in one process."""
    return least[f"{what}, {over}"] - least[f"{what}, {here}"]


def _seconds(data: Path) -> dict[str, list[float]]:
    """Start a federation that may run the measuring programs, have it run them, and return what they wrote."""
    root = str(Path(__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = root if before is None else f"{root}{os.pathsep}{before}"
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            rehearsal(Path(scratch), {name: str(data) for name in SITES}) as members,
        ):
            _admit_programs(members, data)
            _run(members, Path(scratch))
            text = (Path(own_settings(members.server.path)["state"]) / RESULT).read_text(encoding="utf-8")
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    seconds: dict[str, list[float]] = json.loads(text)
    return seconds


def _admit_programs(members: Rehearsal, data: Path) -> None:
    """Let the kits run two classes more, and start everybody again."""
    for name in list(members.processes):
        members.kill(name)
    for kit in (members.server, *members.sites.values()):
        path = kit.path / "local" / "resources.json"
        tree = json.loads(path.read_text(encoding="utf-8"))
        tree["class_allow_list"] += PROGRAMS.values()
        write_json(path, tree)
    write_json(members.server.own, own_settings(members.server.path) | {DATA: str(data)})
    for name in ("server", *SITES):
        members.start(name)


def _run(members: Rehearsal, scratch: Path) -> None:
    """Submit the job, and wait for its end."""
    content: dict[str, Any] = {
        "method": {"name": NAME},
        "data": {"sites": dict.fromkeys(SITES, "own")},
        "input": {"size": SIZE},
        "training": {"rounds": 1},
        "runtime": {"threads": 1, "device": "cpu", "precision": "fp32"},
    }
    job = Job("transport", without_local_parts(recipes.validate(content, read_method)))
    write_job(scratch / "transport", job, SITES)
    for path in (scratch / "transport" / "app" / "config").glob("config_fed_*.json"):
        text = path.read_text(encoding="utf-8")
        for ours, measuring in PROGRAMS.items():
            text = text.replace(ours, measuring)
        path.write_text(text, encoding="utf-8")
    _finish(members.operator, scratch / "transport")


def _finish(operator: Kit, job: Path) -> None:
    until = time.monotonic() + LIMIT
    with connect_to_server(operator, 300.0) as session:
        while len(list(session.get_connected_client_list())) < len(SITES):
            time.sleep(1.0)
        number = session.submit_job(str(job))
        while not str(status := session.get_job_meta(number).get("status")).startswith("FINISHED"):
            if time.monotonic() > until:
                raise RunFailed(f"the measuring job has not ended within {LIMIT:g} s; it is {status}")
            time.sleep(1.0)

"""Measurements of a soak: growth of living processes, zombies, and faults that follow from a seed."""

import math
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from campaigns.soak.faults import KINDS, PAUSES, plan_fault
from campaigns.soak.machines import Machine, environment_of
from campaigns.soak.sampling import INTERVAL, LEAST_FREEDOM, WARM_UP, Sample, Sampler, growth, hours, settled_samples

SAMPLE = Sample(at=0.0, kind="site", machine="A", pid=1, age=300.0, rss_mb=300.0, files=30, threads=20)

PARENT_OF_A_ZOMBIE = """
import os, sys
child = os.fork()
if not child:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
sys.stdin.read()
"""


def life(memory: Iterable[float]) -> list[Sample]:
    """Return one sample of a process per minute, by its memory."""
    return [replace(SAMPLE, at=60.0 * n, age=60.0 * n, rss_mb=float(value)) for n, value in enumerate(memory)]


def test_growth_is_that_of_processes_while_they_live() -> None:
    """Each grows by 6 MB per hour; the second is larger from the start, which is no growth."""
    first = life([300 + 0.1 * minute for minute in range(30)])
    second = [replace(sample, pid=2, rss_mb=sample.rss_mb + 100) for sample in first[:10]]
    slope = growth([*first, *second], "rss_mb")
    assert slope.per_hour == pytest.approx(6.0)
    assert slope.error == pytest.approx(0.0, abs=1e-6)
    assert growth([*first, *second], "files").per_hour == 0.0


def test_error_of_growth_is_that_of_a_line() -> None:
    values = 300 + np.random.default_rng(0).normal(size=40).cumsum()
    coefficients, covariance = np.polyfit(np.arange(40) / 60, values, 1, cov=True)
    slope = growth(life(values), "rss_mb")
    assert slope.per_hour == pytest.approx(coefficients[0])
    assert slope.error == pytest.approx(2 * math.sqrt(covariance[0, 0]))


def test_more_samples_per_minute_do_not_reduce_the_error() -> None:
    few = life(np.random.default_rng(0).normal(300, 5, size=40))
    many = [replace(sample, age=sample.age + 5 * number) for sample in few for number in range(12)]
    assert growth(many, "rss_mb").error == pytest.approx(growth(few, "rss_mb").error)


def test_leak_exceeds_the_bound_and_noise_does_not() -> None:
    noise = np.random.default_rng(1).normal(scale=5, size=60)
    assert not growth(life(300 + noise), "rss_mb").exceeds(10)
    assert growth(life(300 + np.arange(60) + noise), "rss_mb").exceeds(10), "60 MB per hour"


def test_few_samples_exceed_no_bound() -> None:
    steep = life([300.0 + 10 * minute for minute in range(LEAST_FREEDOM + 1)])
    for samples in ([], [SAMPLE], steep):
        assert not growth(samples, "rss_mb").exceeds(0)
        assert str(growth(samples, "rss_mb")) == "–"


def test_samples_of_the_warm_up_and_of_other_processes_do_not_count() -> None:
    young, other = replace(SAMPLE, age=WARM_UP / 2), replace(SAMPLE, kind="server")
    assert settled_samples([SAMPLE, young, other], "site") == [SAMPLE]


def test_hours_are_those_of_all_processes_together() -> None:
    assert hours([SAMPLE] * round(1800 / INTERVAL)) == pytest.approx(0.5)


def test_lasting_zombies_are_counted(tmp_path: Path) -> None:
    machine = Machine("A", str(tmp_path), (), tmp_path, tmp_path / "A.log")
    command = [sys.executable, "-c", PARENT_OF_A_ZOMBIE]
    env = environment_of(machine.root, machine.name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as machine.process:
        assert machine.process.stdout is not None
        zombie = int(machine.process.stdout.readline())
        patient = Sampler(machine.root, {"A": machine}, tmp_path / "samples.csv")
        impatient = Sampler(machine.root, {"A": machine}, tmp_path / "samples.csv", zombie_seconds=-1.0)
        samples = [(sample.kind, sample.machine) for sample in patient.sample_processes()]
        list(impatient.sample_processes())
        machine.process.kill()
    assert samples == [("site", "A")], "the zombie has no memory"
    assert (set(patient.zombies), patient.unreaped) == ({zombie}, set())
    assert impatient.unreaped == {zombie}


def test_faults_follow_from_the_seed() -> None:
    sites = ("A", "B")
    faults = [plan_fault(0, number, sites) for number in range(400)]
    assert faults == [plan_fault(0, number, sites) for number in range(400)]
    assert faults != [plan_fault(1, number, sites) for number in range(400)]
    assert {fault.kind for fault in faults} == set(KINDS), "a long soak has every fault"
    assert {fault.site for fault in faults} == set(sites)
    assert all(PAUSES[0] <= fault.pause <= PAUSES[1] for fault in faults)

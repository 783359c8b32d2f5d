"""Run a federation on this machine: a server, two sites and an operator, as separate processes with mutual TLS.

python examples/federation.py runs/federation
"""

import argparse
import socket
import subprocess
import sys
from pathlib import Path

import yaml

SITES = {"bank": "O", "border": "C"}


def start(*words: object) -> subprocess.Popen[bytes]:
    """Start a command of fedvisage."""
    return subprocess.Popen(["fedvisage", *map(str, words)])


def main() -> None:
    """Make the kits and the data, start server and sites, submit a run, and stop the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="new directory for kits, data and the run")
    out = parser.parse_args().out
    out.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = {
        "name": "example",
        "server": {"host": "localhost", "port": port, "organisation": "institute"},
        "operator": {"email": "operator@example.org", "organisation": "institute"},
        "sites": {name: {"organisation": name} for name in SITES},
    }
    (out / "federation.yaml").write_text(yaml.safe_dump(members))
    start("provision", out / "federation.yaml", out / "kits").wait()
    for name, domain in {**SITES, "target": "M"}.items():
        start("data", "synth", out / name, "--domain", domain, "--subjects", 8, "--frames", 1, "--size", 64).wait()
    recipe = {
        "method": "fedpad",
        "data": {"sites": dict.fromkeys(SITES, "its own"), "target": str(out / "target")},
        "input": {"size": 64},
        "training": {"rounds": 3, "local": {"epochs": 1}},
    }
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    kits = out / "kits"
    processes = [start("server", kits / "server")]
    processes += [start("site", kits / "sites" / name, "--data", out / name) for name in SITES]
    try:
        options = ["--on", "nvflare", "--kit", kits / "operator", "--out", out / "run"]
        sys.exit(start("run", out / "recipe.yaml", *options).wait())
    finally:
        for process in processes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()

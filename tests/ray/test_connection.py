"""Connections to a Ray cluster: each fault is one line that names it and its remedy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ray.clusters import Cluster
from tests.refusals import check_output
from tests.toy import Sets, tree


def run_on(address: str, sets: Sets, folder: Path, environment: dict[str, str]) -> Any:
    """Return the ended command of a run on a cluster."""
    (folder / "recipe.yaml").write_text(json.dumps(tree(sets, training__rounds=1)))
    command = [sys.executable, "-m", "fedvisage", "run", str(folder / "recipe.yaml"), "--out", str(folder / "run")]
    command += ["--on", "ray", "--address", address]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("token", ["wrong", "missing"])
def test_wrong_token_is_one_line(token: str, two_nodes: Cluster, sets: Sets, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if token == "wrong":
        path.write_text("0" * 64)
    ended = run_on(two_nodes.address, sets, tmp_path, two_nodes.environment(RAY_AUTH_TOKEN_PATH=str(path)))
    assert ended.returncode == 2
    check_output(ended.stderr, "RAY_AUTH_TOKEN_PATH", two_nodes.address, "RAY_AUTH_MODE")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1"])
def test_address_of_another_form_is_one_line(address: str, two_nodes: Cluster, sets: Sets, tmp_path: Path) -> None:
    ended = run_on(address, sets, tmp_path, two_nodes.environment())
    assert ended.returncode == 2
    check_output(ended.stderr, "--address", "HOST:PORT")


def test_address_without_a_cluster_is_one_line(two_nodes: Cluster, sets: Sets, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ended = run_on(address, sets, tmp_path, two_nodes.environment())
    assert ended.returncode == 2
    check_output(ended.stderr, "--address", address, "docs/scale.md")

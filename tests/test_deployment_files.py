"""The files in deploy/, without a container runtime, a cluster or a running systemd."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from tests.toy import files_below

from fedvisage import cli
from fedvisage.base.files import write_json
from fedvisage.nvflare.authority import read_federation
from fedvisage.nvflare.kits import hold_directories

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROGRAM, VERIFY = "/opt/fedvisage/bin/fedvisage", shutil.which("systemd-analyze")
HEALTH = ("python", "/opt/fedvisage/health.py", "/kit")
USER_ID = 10001
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def instructions(name: str) -> list[str]:
    """Return the arguments of each use of a Dockerfile instruction, in one line and without comments."""
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    return re.findall(rf"^{name} (.*)$", re.sub(r"\\\n\s*", "", lines), flags=re.MULTILINE)


def manifest(path: Path, kind: str) -> dict[str, Any]:
    (only,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == kind]
    return dict(only)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command of the package in these files, with its place."""
    for name, service in COMPOSE["services"].items():
        yield f"compose: {name}", service["command"]
    for path in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), flags=re.MULTILINE)
        program, *words = line.split()
        assert program == PROGRAM
        yield path.name, words
    for path in MANIFESTS:
        for container in manifest(path, "Deployment")["spec"]["template"]["spec"]["containers"]:
            yield path.name, container["args"]


@pytest.mark.parametrize(("place", "words"), list(commands()), ids=[place for place, _ in commands()])
def test_every_command_exists_in_the_package(place: str, words: list[str]) -> None:
    verb = vars(typer.main.get_command(cli.app))["commands"][words[0]]
    verb = vars(verb).get("commands", {}).get("start", verb)  # of a site
    parsed = verb.make_context(words[0], words[1:])
    assert str(parsed.params["kit"]).endswith("/kit")


@pytest.mark.skipif(VERIFY is None, reason="no systemd-analyze on the PATH")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units_and_rates_them_secure(unit: Path, tmp_path: Path) -> None:
    """Its exposure is 9.6 for a unit without restrictions; the network and the files remain here."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))
    read = subprocess.run([str(VERIFY), "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert not [line for line in read.stderr.splitlines() if unit.name in line]
    security = [str(VERIFY), "security", "--offline=yes", "--threshold=20", str(unit)]
    result = subprocess.run(security, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-500:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_is_not_restarted_after_a_users_mistake_and_not_run_as_root(unit: Path) -> None:
    text = unit.read_text()
    assert re.search(r"^RestartPreventExitStatus=2$", text, flags=re.MULTILINE)
    assert "StateDirectory=fedvisage\n" in text
    assert not re.search(r"^User=root$", text, flags=re.MULTILINE)


def test_image_copies_existing_files_and_runs_without_root_and_with_a_health_check() -> None:
    for line in instructions("COPY"):
        sources = [] if line.startswith("--from") else line.split()[:-1]
        assert all((ROOT / source).exists() for source in sources), line
    assert instructions("USER") == [f"{USER_ID}:{USER_ID}"]
    assert instructions("ARG")[-1] == "DEVICE=cpu"
    (check,) = instructions("HEALTHCHECK")
    assert yaml.safe_load(check.partition("CMD ")[2]) == list(HEALTH)
    (entry,) = instructions("ENTRYPOINT")
    assert yaml.safe_load(entry) == ["tini", "-g", "--", "fedvisage"]
    assert "[federation]" in DOCKERFILE


def test_members_of_compose_are_restricted_and_have_their_own_kit_and_read_only_data() -> None:
    kits = []
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"] == ["/tmp"]
        assert "ports" not in service, "the federation is on one host"
        mounted = {volume.split(":")[1]: volume for volume in service["volumes"]}
        kits.append(mounted["/kit"].split(":")[0])
        if service["command"][0] == "site":
            assert mounted["/data"] == f"./sets/{name}:/data:ro"
    assert len(set(kits)) == len(kits)
    assert set(COMPOSE["volumes"]) == set(COMPOSE["services"]) - {"operator"}
    federation = read_federation(DEPLOY / "federation.yaml")
    assert set(federation.sites) == set(COMPOSE["services"]) - {"operator", "server"}
    assert federation.server.host == "server"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_is_restricted_probed_and_consistent(path: Path) -> None:
    deployment = manifest(path, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (1, "Recreate")
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == USER_ID
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod["initContainers"], *pod["containers"]]:
        closed = container["securityContext"]
        assert closed["readOnlyRootFilesystem"] is True
        assert closed["allowPrivilegeEscalation"] is False
        assert closed["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    (unpacking,) = pod["initContainers"]
    assert unpacking["command"] == ["sh", "/opt/fedvisage/unpack.sh", "/secret/kit.tgz", "/kit"]
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == list(HEALTH)
    policy = manifest(path, "NetworkPolicy")["spec"]
    assert policy["podSelector"] == deployment["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    ports = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert ports == ([8002] if path.name == "server.yaml" else [])


def health(kit: Path) -> tuple[int, str]:
    result = subprocess.run([sys.executable, str(DEPLOY / "health.py"), str(kit)], capture_output=True, text=True)
    return result.returncode, result.stderr


def test_site_is_healthy_while_a_process_holds_its_kit(tmp_path: Path) -> None:
    assert health(tmp_path)[0] == 1
    with hold_directories(tmp_path):
        assert health(tmp_path) == (0, "")
    code, error = health(tmp_path)
    assert code == 1
    assert "no process" in error


def test_server_is_healthy_while_it_accepts_connections(tmp_path: Path) -> None:
    with socket.socket() as listening, hold_directories(tmp_path):
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        (tmp_path / "startup").mkdir()
        settings = {"servers": [{"service": {"target": f"fed.example.org:{port}"}}]}
        write_json(tmp_path / "startup/fed_server.json", settings)
        assert f"port {port} takes no connection" in health(tmp_path)[1]
        listening.listen()
        assert health(tmp_path) == (0, "")


def unpack(archive: Path, kit: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(DEPLOY / "unpack.sh"), str(archive), str(kit)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def kit_and_archive(tmp_path: Path) -> tuple[Path, Path]:
    """A kit, and its archive as in docs/deployment-files.md."""
    kit, archive = tmp_path / "original", tmp_path / "kit.tgz"
    for name in ("local/resources.json", "readme.txt", ".lock", "startup/client.key", "startup/rootCA.pem"):
        (kit / name).parent.mkdir(parents=True, exist_ok=True)
        (kit / name).write_bytes(name.encode() * 1000)
    subprocess.run(["tar", "-czf", str(archive), "-C", str(kit), "."], check=True)
    return kit, archive


@pytest.mark.parametrize("present", ["", "local", "startup", "local startup/client.key", ".unpacking/startup"])
def test_incompletely_unpacked_kit_is_completed(
    kit_and_archive: tuple[Path, Path], present: str, tmp_path: Path
) -> None:
    original, archive = kit_and_archive
    volume = tmp_path / "volume"
    for name in present.split():
        (volume / name).parent.mkdir(parents=True, exist_ok=True)
        source = original / Path(name).relative_to(".unpacking") if name.startswith(".") else original / name
        shutil.copytree(source, volume / name) if source.is_dir() else (volume / name).write_bytes(b"half")
    volume.mkdir(exist_ok=True)
    assert unpack(archive, volume).returncode == 0
    assert files_below(volume) == files_below(original)
    assert (volume / "startup/client.key").stat().st_mode & 0o777 == 0o600


def test_complete_kit_keeps_its_renewed_certificate_and_gets_a_private_key(
    kit_and_archive: tuple[Path, Path], tmp_path: Path
) -> None:
    volume = shutil.copytree(kit_and_archive[0], tmp_path / "volume")
    (volume / "startup/rootCA.pem").write_bytes(b"renewed")
    (volume / "startup/client.key").chmod(0o660)
    assert unpack(kit_and_archive[1], volume).returncode == 0
    assert (volume / "startup/rootCA.pem").read_bytes() == b"renewed"
    assert (volume / "startup/client.key").stat().st_mode & 0o777 == 0o600


def test_damaged_archive_leaves_no_startable_kit(kit_and_archive: tuple[Path, Path], tmp_path: Path) -> None:
    archive, volume = kit_and_archive[1], tmp_path / "volume"
    archive.write_bytes(archive.read_bytes()[:-30])
    volume.mkdir()
    assert unpack(archive, volume).returncode != 0
    assert not (volume / "startup").exists()


def test_memory_of_every_member_is_limited() -> None:
    members = [service for name, service in COMPOSE["services"].items() if name != "operator"]
    assert {(service["mem_limit"], service["cpus"]) for service in members} == {("16g", 4)}
    for path in MANIFESTS:
        (container,) = manifest(path, "Deployment")["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "16Gi"}


def test_ray_files_set_a_token_and_keep_the_dashboard_from_other_machines() -> None:
    script = (DEPLOY / "ray" / "slurm.sh").read_text()
    subprocess.run(["bash", "-n", str(DEPLOY / "ray" / "slurm.sh")], check=True)
    assert "export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0" in script
    assert "umask 077" in script
    assert "--include-dashboard=false" in script
    cluster = manifest(DEPLOY / "ray" / "raycluster.yaml", "RayCluster")["spec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
    machines = yaml.safe_load((DEPLOY / "ray" / "cluster.yaml").read_text())
    starts = [machines[f"{role}_start_ray_commands"][-1] for role in ("head", "worker")]
    assert all("umask 077" in start and "RAY_AUTH_MODE=token" in start for start in starts)
    assert "--include-dashboard=false" in starts[0]
    assert machines["file_mounts"]["~/.ray/auth_token"] == "token"
    assert len({kind["node_config"]["InstanceType"] for kind in machines["available_node_types"].values()}) == 1


def test_ray_versions_of_the_files_are_the_pinned_one() -> None:
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray=="))
    assert manifest(DEPLOY / "ray" / "raycluster.yaml", "RayCluster")["spec"]["rayVersion"] == pinned.removeprefix(
        "ray=="
    )
    assert f"ray[default]=={pinned.removeprefix('ray==')}" in (DEPLOY / "ray" / "cluster.yaml").read_text()

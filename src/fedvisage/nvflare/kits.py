"""Kits of the server, sites and operators: keys and certificates for mutual TLS, permissions, a readme, and locks."""

from __future__ import annotations

import copy
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import lock_directory, read_json
from fedvisage.nvflare.certificates import OPERATOR, VIEWER, Credentials, certificates_in, credentials_in, role_of

# Permissions of a kit, in NVFlare's own files: no code from jobs, no other classes, no logs, no shells. NVFlare's
# defaults suit research: any class of its library, any right for the operator, jobs that bring code, sites that send
# their error log to the server. Kits of a federation over faces deny all of this.


HERE = "fedvisage.nvflare"
SERVER_CLASS, SITE_CLASS = f"{HERE}.server_program.ServerProgram", f"{HERE}.site_program.SiteProgram"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_WATCH, SITE_WATCH = f"{HERE}.watching.ServerWatch", f"{HERE}.watching.SiteWatch"
WATCH = "fedvisage_watch"
"""The name of our watch among the components of a kit."""

UNWANTED = ("site_log_streamer", "log_receiver", WATCH)

Tree = dict[str, Any]


def server_resources(default: Tree, jobs: str, snapshots: str) -> Tree:
    """Return the server's resources: our two classes and a watch, and a job store apart from the host's shared one."""
    tree = _restrict_resources(default, [SERVER_CLASS, CONTROLLER], SERVER_WATCH)
    tree["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = snapshots
    for component in tree["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = jobs
    return tree


def site_resources(default: Tree) -> Tree:
    """Return a site's resources: our two classes and a watch, and no component that sends a log."""
    return _restrict_resources(default, [SITE_CLASS, EXECUTOR], SITE_WATCH)


def _restrict_resources(default: Tree, classes: list[str], watch: str) -> Tree:
    """Return resources that allow only these classes, and send no log."""
    tree = copy.deepcopy(default)
    tree["class_allow_list"], tree["class_list_enforcement_mode"] = [*classes, watch], "enforce"
    tree["allow_log_streaming"] = False
    tree["components"] = [part for part in tree["components"] if part["id"] not in UNWANTED]
    tree["components"].append({"id": WATCH, "path": watch, "args": {}})
    return tree


def authorization(*, at_site: bool) -> Tree:
    """Return NVFlare's permissions: the operator runs federations, but can neither bring code nor inspect a machine."""
    rights = {
        "submit_job": "any",
        "manage_job": "any",
        "view": "any",
        "app_command": "any",
        "download_job": "none" if at_site else "any",
        "clone_job": "none",
        "operate": "none",
        "shell_commands": "none",
        "byoc": "none",
        "server-predeployed-flwr": "none",
    }
    none = dict.fromkeys(rights, "none")
    viewer = none | {"view": "any", "app_command": "any"}  # the only command of our program reports its progress
    roles = {OPERATOR: rights, "org_admin": none, "lead": none, VIEWER: viewer}
    return {"format_version": "1.0", "permissions": roles}


# The readme of a kit: its purpose, the command that uses it, and a warning to keep it secret.


START = {
    "server": """Start the server, and leave it running:

    fedvisage server KIT

Port {port} must be reachable from the sites and the operator, under the name {host}.
Runs are kept in KIT/runs; --state DIR keeps them elsewhere.""",
    "site": """Start this site with its own prepared set, and leave it running:

    fedvisage site KIT --data DIR

It connects to {host}:{port}; nobody connects to it. The data stays where it is, and so does its path.
KIT/local/policy.yaml decides which runs use the data; fedvisage site policy KIT checks it.
Private state is kept in KIT/state; --state DIR keeps it elsewhere.""",
    "operator": """Run a recipe that names the sites, and show the state of the federation:

    fedvisage run RECIPE --on nvflare --kit KIT --out DIR
    fedvisage status --kit KIT

List the runs on the server, and stop one:

    fedvisage runs --kit KIT
    fedvisage stop RUN --kit KIT

All connect to {host}:{port}.""",
    "viewer": """Show the state of the federation, and list the runs on the server:

    fedvisage status --kit KIT
    fedvisage runs --kit KIT

Both connect to {host}:{port}. This kit can neither start nor stop a run.""",
}

PAGE = """The kit of {whose} in the federation {federation}
{line}

This directory is a secret, like a password: its key (startup/*.key) lets its holder act as {whose}.

{start}

KIT is this directory. One process uses it at a time. NVFlare's log is log.txt; what this machine allows is in local.
The certificates are checked at every start: a message names the file and the remedy, and warns 30 days before a
certificate ends. To renew: cp -r UPDATE/. KIT, and start again. docs/deploy.md describes all of this.
"""


def readme_of(kind: Kind, name: str, federation: str, host: str, port: int) -> str:
    """Return the readme of one kit."""
    whose = "the server" if kind == "server" else f"the {kind} {name}"
    head = f"The kit of {whose} in the federation {federation}"
    start = START[kind].format(host=host, port=port)
    return PAGE.format(whose=whose, federation=federation, line="=" * len(head), start=start)


Kind = Literal["server", "site", "operator", "viewer"]
STARTUP: dict[Kind, str] = {
    "server": "fed_server.json",
    "site": "fed_client.json",
    "operator": "fed_admin.json",
    "viewer": "fed_admin.json",
}
NAME_KEYS: dict[Kind, tuple[Any, ...]] = {
    "server": ("servers", 0, "admin_server"),
    "site": ("client", "fqsn"),
    "operator": ("admin", "username"),
    "viewer": ("admin", "username"),
}
"""The place of a member's name in these files of NVFlare."""
WITH_ARTICLE: dict[Kind, str] = {
    "server": "the server",
    "site": "a site",
    "operator": "an operator",
    "viewer": "a viewer",
}
OWN = "fedvisage.json"
"""Name of a file in a kit's ``local`` directory: settings that belong to this machine and never travel."""

ANEW = "get this kit again from the person who provisioned the federation"
"""The remedy for damage to a kit's own files."""

ROSTERS = "rosters"
"""Key among a machine's own settings: the rosters that the administrator allows, separated by spaces."""

REQUIRE_SECURE = "require_secure"
"""Key among a site's own settings, with the value "yes" if it refuses runs without secure sums."""

REHEARSAL = "rehearsal"
"""Key among these settings: all members are processes of one machine, so that none needs protection from another."""


STREAMS, STREAMS_EACH = 1024, 16
"""Default numbers of streams that a server carries, and of streams of one certificate. A site has one, and one more for
each run that it takes part in, so that this is enough for 500 sites in one run."""


@dataclass(frozen=True)
class Kit:
    """An opened kit."""

    path: Path
    kind: Kind
    name: str

    @property
    def own(self) -> Path:
        """The file of this machine's own settings."""
        return self.path / "local" / OWN

    @property
    def credentials(self) -> Credentials:
        """The kit's certificate and key, and the root certificate of its federation."""
        return credentials_in(self.path, at_server=self.kind == "server")


def open_kit(path: Path, kind: Kind) -> Kit:
    """Open a kit, and refuse a kit of another kind; an operator's kit can do all that a viewer's can."""
    path = path.resolve()
    for actual_kind, file in STARTUP.items():
        if (path / "startup" / file).is_file():
            if actual_kind == "operator":
                certificate = certificates_in(credentials_in(path, at_server=False).certificate)[0]
                actual_kind = "viewer" if role_of(certificate) == VIEWER else "operator"
            if actual_kind != kind and (actual_kind, kind) != ("operator", "viewer"):
                users = "an operator or a viewer" if kind == "viewer" else WITH_ARTICLE[kind]
                needed = f"but this command needs the kit of {users}"
                raise UserError(str(path), f"is the kit of {WITH_ARTICLE[actual_kind]}, {needed}")
            if not (path / "local").is_dir():
                raise UserError(str(path / "local"), f"is missing; {ANEW}")
            name: Any = read_json(path / "startup" / file, ANEW)
            try:
                for key in NAME_KEYS[actual_kind]:
                    name = name[key]
            except (KeyError, IndexError, TypeError) as error:
                raise UserError(str(path / "startup" / file), f"is damaged; {ANEW}") from error
            return Kit(path, actual_kind, str(name))
    raise UserError(str(path), "is not a kit; `fedvisage provision` makes one for each machine")


def own_settings(kit: Path) -> dict[str, str]:
    """Read a machine's own settings from its kit."""
    path = kit / "local" / OWN
    if not path.exists():
        return {}
    settings = read_json(path, "start this machine again with its command")
    return {str(key): str(value) for key, value in settings.items()}


def state_directory(kit: Kit, state: Path | None) -> Path:
    """Return the directory of a server's runs, or of a site's private state."""
    return (state or kit.path / ("runs" if kit.kind == "server" else "state")).resolve()


def make_private(directory: Path) -> None:
    """Make a directory, all directories in it, and its keys accessible to their owner alone."""
    for path in (directory, *directory.rglob("*")):
        if path.is_dir() or path.suffix == ".key":
            path.chmod(0o700 if path.is_dir() else 0o600)


# Locks: one process per kit, state directory and port. The kernel releases the locks of a dead process.


@contextmanager
def hold_directories(*directories: Path) -> Iterator[None]:
    """Hold directories; the error for a directory that is already held names the process that holds it."""
    with ExitStack() as stack:
        for directory in dict.fromkeys(directory.resolve() for directory in directories):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_directory(directory))
        yield


@contextmanager
def hold_port(port: int) -> Iterator[None]:
    """Hold a port, and refuse a port with another listener.

    gRPC lets two servers listen on one port, and connections then go to either. A check for a listener is not enough
    for two servers that start at the same moment. So this function also takes a name in Linux' abstract sockets: like a
    port it belongs to the machine (or container), and to one process at most. Other systems only have the check.
    """
    with socket.socket(socket.AF_UNIX) if sys.platform == "linux" else nullcontext() as name_socket:
        try:
            if name_socket is not None:
                name_socket.bind(f"\0fedvisage-port-{port}")
            with socket.socket() as probe:  # without SO_REUSEPORT, so that it detects any listener
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            raise RunFailed(
                f"port {port} is already in use ({error.strerror}); is another server running on it?"
            ) from error
        yield

"""What a kit may do, as NVFlare's own files say it: no code of a job, no other classes, no logs, no shells.

NVFlare's defaults are made for research: any class of its library, any right for the operator, jobs that bring code,
sites that send their error log to the server. Kits of a federation over faces begin closed.
"""

from __future__ import annotations

import copy
from typing import Any

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
    """Return the server's resources: our two classes and a watch, and a job store of its own, not the host's."""
    tree = _closed(default, [SERVER_CLASS, CONTROLLER], SERVER_WATCH)
    tree["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = snapshots
    for component in tree["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = jobs
    return tree


def site_resources(default: Tree) -> Tree:
    """Return a site's resources: our two classes and a watch, and nothing that sends a log."""
    return _closed(default, [SITE_CLASS, EXECUTOR], SITE_WATCH)


def _closed(default: Tree, classes: list[str], watch: str) -> Tree:
    tree = copy.deepcopy(default)
    tree["class_allow_list"], tree["class_list_enforcement_mode"] = [*classes, watch], "enforce"
    tree["allow_log_streaming"] = False
    tree["components"] = [part for part in tree["components"] if part["id"] not in UNWANTED]
    tree["components"].append({"id": WATCH, "path": watch, "args": {}})
    return tree


def authorization(*, at_site: bool) -> Tree:
    """Return who may do what: the operator runs federations, and can neither bring code nor look into a machine."""
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
    roles = {"project_admin": rights, "org_admin": none, "lead": none, "member": none}
    return {"format_version": "1.0", "permissions": roles}

"""The page that lies in each kit: what it is, the command that uses it, and what to keep to oneself."""

from __future__ import annotations

from typing import Literal

START = {
    "server": """Start the server, and leave it running:

    fedvisage server KIT

Port {port} must be reachable from the sites and the operator, under the name {host}.
Runs are kept in KIT/runs; --state DIR keeps them elsewhere.""",
    "site": """Start this site with its own prepared set, and leave it running:

    fedvisage site KIT --data DIR

It connects to {host}:{port}; nobody connects to it. The data stays where it is, and so does its path.
Private state is kept in KIT/state; --state DIR keeps it elsewhere.""",
    "operator": """Run a recipe that names the sites, and look how the federation is:

    fedvisage run RECIPE --on nvflare --kit KIT --out DIR
    fedvisage status KIT

Both connect to {host}:{port}.""",
}

PAGE = """The kit of {whose} in the federation {federation}
{line}

This directory is a secret, like a password: its key (startup/*.key) lets whoever has it be {whose}.

{start}

KIT is this directory. One process uses it at a time. NVFlare's log is log.txt; what this machine allows is in local.
The certificates are checked at every start: a message names the file and what to do, and says 30 days ahead when one
ends. To renew: cp -r UPDATE/. KIT, and start again. docs/deploy.md says more.
"""


def readme_of(kind: Literal["server", "site", "operator"], name: str, federation: str, host: str, port: int) -> str:
    """Return the text for one kit."""
    whose = {"site": f"the site {name}", "operator": f"the operator {name}", "server": "the server"}[kind]
    head = f"The kit of {whose} in the federation {federation}"
    start = START[kind].format(host=host, port=port)
    return PAGE.format(whose=whose, federation=federation, line="=" * len(head), start=start)

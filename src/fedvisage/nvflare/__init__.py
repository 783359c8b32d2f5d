"""The federation between organisations, on NVFlare's Collab calls over mutual TLS.

This folder is the only place that knows NVFlare. It is a room of its own at the top of the house: its server and site
programs wire the same pieces as ``run.py`` does for a run in one process.
"""

from __future__ import annotations

from fedvisage.base.errors import UserError

try:
    import nvflare as _installed  # noqa: F401
except ImportError as error:
    raise UserError("nvflare", "is not installed; run: pip install 'fedvisage[nvflare]'") from error

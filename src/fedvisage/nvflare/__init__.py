"""The federation between organisations, on NVFlare's Collab calls over mutual TLS.

No other package imports NVFlare. The server and site programs here connect the same parts as ``runs`` does for a run in
one process.
"""

from __future__ import annotations

from fedvisage.base.extensions import missing_extra

try:
    import nvflare as _installed  # noqa: F401
except ImportError as error:
    raise missing_extra("federation", "nvflare") from error

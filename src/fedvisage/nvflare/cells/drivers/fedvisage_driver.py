"""Loaded by NVFlare in all processes of a kit, before their first connection: the local socket, and rules for messages.

This folder is not a package: NVFlare imports each of its files by its bare name.
"""

from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from fedvisage.nvflare.cells import rules
from fedvisage.nvflare.cells.local_socket import LocalSocketDriver

__all__ = ["LocalSocketDriver"]

if CoreCell.process_message is rules._process_message:  # a process of a job; the kit's process has installed them
    rules.install()

"""``ray start`` on the loopback interface only: ``python start_node.py start --head …``.

Ray gives a node this address if it runs on systems where clusters of several nodes have no support, and then refuses a
second node; this program skips that refusal.
"""

import sys

from ray._private import ray_constants, services
from ray.scripts import scripts

LOOPBACK = "127.0.0.1"

ray_constants.ENABLE_RAY_CLUSTER = True
services.get_node_ip_address = lambda address=None: LOOPBACK
services.node_ip_address_from_perspective = lambda address=None: LOOPBACK
sys.argv[0] = "ray"
scripts.main()

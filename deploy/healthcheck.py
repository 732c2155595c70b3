"""``python healthcheck.py PORT PATH``: ends with 0 if a service of this container answers with 200.

The standard library alone, because it runs every few seconds.
"""

import sys
from urllib.request import ProxyHandler, build_opener

port, path = sys.argv[1:]
# A proxy of the environment would be asked for loopback.
with build_opener(ProxyHandler({})).open(
    f"http://127.0.0.1:{int(port)}{path}", timeout=8
) as answer:
    sys.exit(answer.status != 200)

"""``python healthcheck.py PORT PATH [CERTIFICATE]``: ends with 0 if a service of this container answers with 200, by https if
its certificate is named.

The standard library alone, because it runs every few seconds.
"""

import ssl
import sys
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

port, path, *certificate = sys.argv[1:]
# A proxy of the environment would be asked for loopback.
handlers = [ProxyHandler({})]
if certificate:
    handlers.append(HTTPSHandler(context=ssl.create_default_context(cafile=certificate[0])))
scheme = "https" if certificate else "http"
with build_opener(*handlers).open(f"{scheme}://127.0.0.1:{int(port)}{path}", timeout=8) as answer:
    sys.exit(answer.status != 200)

"""Asks the server in this container whether it is ready: 0 where it is, 1 where it still loads, or does not answer.

Not by `urllib`, which would ask a proxy of the environment, and not by `curl`, which an image need not have. A key is not needed.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

PATIENCE_S = 4.0

try:
    connection = HTTPConnection("127.0.0.1", int(os.environ["LLAMA_ARG_PORT"]), timeout=PATIENCE_S)
    connection.request("GET", "/health")
    sys.exit(connection.getresponse().status != 200)
except (OSError, HTTPException):
    sys.exit(1)

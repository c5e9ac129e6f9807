"""Checks whether the server in this container is ready: exits with 0 if it is, with 1 if it is loading or does not answer.

`urllib` would use a proxy of the environment, and the image has no `curl`. `/health` needs no API key.
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

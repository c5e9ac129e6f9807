"""Asks the server in this container whether it is ready: 0 where it is, 1 where it still loads, or does not answer.

Not by `urllib`, which would ask a proxy of the environment, and not by `curl`, which an image need not have. A key is not needed.
"""

import sys
from http.client import HTTPConnection, HTTPException

ADDRESS = ("127.0.0.1", 8080)
PATIENCE_S = 4.0

try:
    connection = HTTPConnection(*ADDRESS, timeout=PATIENCE_S)
    connection.request("GET", "/health")
    sys.exit(connection.getresponse().status != 200)
except (OSError, HTTPException):
    sys.exit(1)

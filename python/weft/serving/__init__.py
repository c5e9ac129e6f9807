"""The serving process: sockets, logging, the supervisor, and the worker that it supervises."""

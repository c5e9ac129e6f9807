"""A process that serves: its sockets, its log, a supervisor, and the worker that it watches over."""

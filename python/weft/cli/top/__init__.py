"""What a running server does, told in a terminal: it is asked over HTTP, and nothing of it is imported."""

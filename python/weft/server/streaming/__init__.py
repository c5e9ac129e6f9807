"""Responses that are sent while they are generated: formats, fairness, slow clients, and streams that can be resumed."""

"""Past one machine: what replicas tell of what they hold, and who is sent where."""

"""The command line: parses flags, variables and the configuration file, and runs the commands."""

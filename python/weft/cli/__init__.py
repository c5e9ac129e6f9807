"""The command line: flags, variables and a file become settings, and what is asked for is done."""

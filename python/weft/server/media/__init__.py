"""Images and audio of requests: in the body, in the folder of `--media-path`, or at an allowed host."""

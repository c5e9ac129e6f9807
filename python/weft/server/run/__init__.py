"""Running requests, independent of the API: submission, streaming, and cancellation."""

"""Running requests, independent of the API: submission, generation, and cancellation."""

"""From a request of any dialect to its answer: how one is submitted, followed, written out, and given up."""

"""Programs that measure, each run from the repository's root: `python -m benchmarks.NAME`."""

"""Opens exports: the engine of each format, the manifest, and what computes a graph."""

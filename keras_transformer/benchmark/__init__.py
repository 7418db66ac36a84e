"""Speed beside other engines: the same work, the same machine, in turns.

`decode.benchmark_decode`, `decode.benchmark_corpus` and `table.table` are imported from their
modules: the command line reads its options without loading any engine.
"""

"""LiteRT: `export.py` writes, `verification.py` proves, `engine.py` translates without Keras."""

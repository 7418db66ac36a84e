"""Models of Marian, OPUS-MT, Bergamot and Firefox are read; models of Marian are written."""

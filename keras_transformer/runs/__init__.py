"""The format of a run: names of its files, and how they are read and written."""

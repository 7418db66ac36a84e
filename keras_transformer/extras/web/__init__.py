"""A translator as one static folder for browsers: `export.py` writes it from `static/`."""

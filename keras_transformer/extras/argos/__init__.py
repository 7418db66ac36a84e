"""Packages of Argos Translate and LibreTranslate: read and written."""

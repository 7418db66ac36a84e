"""Models of CTranslate2: read, written, and run by its engine."""

"""Models of Hugging Face: Marian, M2M100 and NLLB are read, Marian is written."""

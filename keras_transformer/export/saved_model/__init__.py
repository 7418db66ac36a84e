"""Format `saved_model`: TensorFlow's graphs, text to text."""

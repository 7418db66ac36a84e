"""First on `PYTHONPATH`, it makes a machine without TensorFlow, whose import takes three seconds.

Keras imports TensorFlow also with JAX, to set its seed.
"""

raise ImportError("This is a machine without TensorFlow.")

"""CTranslate2: the conversion, its proof, and the engine that reads it."""

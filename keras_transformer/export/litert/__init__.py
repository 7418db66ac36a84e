"""Format `litert`: a file for LiteRT, from ids to ids."""

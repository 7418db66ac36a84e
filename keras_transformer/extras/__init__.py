"""Around the core, a folder each: other programs' models, pages, documents, servers, corpora.

The core and every other command run without any of these folders. An extra imports the core, and
another extra only where it is made of it.
"""

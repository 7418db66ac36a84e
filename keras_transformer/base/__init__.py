"""The ground of all other folders: errors, files, reading, options, ids, imports, memory, formats.

It imports nothing else of this package.
"""

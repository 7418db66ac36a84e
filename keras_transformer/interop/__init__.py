"""Models of other programs: a folder per program, with its reader, its writer and its engine.

`importing` makes a model or a run of a folder of any of them. The core imports nothing from here.
"""

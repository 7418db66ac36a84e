"""The commands of the command line, one a file: each parses, calls one function, prints."""

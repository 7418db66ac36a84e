"""The commands of the command line: each parses, calls one function, prints."""

"""Command line: `main` runs it, a module holds each command."""

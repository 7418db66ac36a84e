"""Speed beside other engines: the same work, the same machine, in turns."""

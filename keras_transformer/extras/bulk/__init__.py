"""Files of lines, translated chunk by chunk: in this process, or over Ray Data."""

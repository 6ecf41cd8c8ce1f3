"""Files of tokens as sources: documents of an index, and documents between end tokens."""

"""Look at files that another program wrote, before a native reader opens them."""

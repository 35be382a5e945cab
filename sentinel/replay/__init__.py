"""What `sentinel replay` is made of: old logs are read, and the same core decides over them."""

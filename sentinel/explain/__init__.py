"""What `sentinel explain` is made of, over the parts of `replay`."""

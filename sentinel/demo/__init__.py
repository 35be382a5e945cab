"""What `sentinel demo` is made of."""

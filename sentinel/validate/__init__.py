"""What `sentinel validate` is made of: policies and rule files are judged."""

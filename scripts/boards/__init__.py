"""One file for each dashboard: a function of its name that makes it."""

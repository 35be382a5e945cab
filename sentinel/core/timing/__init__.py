"""Iterations of a job → how fast it is, since when it is slower, whose fault that is, whether it hangs."""

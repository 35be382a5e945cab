"""`sentinel run` and its like: the agent and the controller in one process, over the jobs of one machine."""

"""The jobs of a cluster while this controller leads: their objects, pods, nodes and agents, joined with `jobs/`."""

"""Where processes stand and whom they wait for: their states, their stacks, their flight records."""

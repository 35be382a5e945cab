"""Between a leader and its agents: who leads, what is asked, whose time it is, what ends where nobody is reached."""

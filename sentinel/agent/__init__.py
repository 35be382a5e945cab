"""The agent: `ranks` follows the ranks of jobs, wherever they run; `node` is the daemon of a node."""

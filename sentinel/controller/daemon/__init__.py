"""The daemon of a cluster: `controlling` joins its parts; its pages, orders given there, its work by the clock."""

"""What the PCI bus tells of cards: which are there, their errors, and bridges that slow them down."""

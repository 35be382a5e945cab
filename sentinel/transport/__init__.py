"""How agents and the controller speak: docs/transport.md."""

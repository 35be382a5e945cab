"""What people see on a terminal: tables, a picture shown again and again, the live line, lines of several ranks."""

"""The virtual cell: stand-in for a real cell."""

"""Full space: material laws, elements, full-order solver, stress."""

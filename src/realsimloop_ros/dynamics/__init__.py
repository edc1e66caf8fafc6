"""Reduced stepping, rollouts, adjoint and sensitivities."""

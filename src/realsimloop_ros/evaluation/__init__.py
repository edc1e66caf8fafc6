"""Bags, metrics, reports, benchmarks."""

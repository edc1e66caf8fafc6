"""Reduced space: snapshots, grip warp, subspaces, cubature, the reduced model."""

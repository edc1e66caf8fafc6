"""Cameras, synchroniser, masking, splats, rasterizers, likelihoods."""

"""What is simulated: bodies, meshes, zones, grips, markers, and their files."""

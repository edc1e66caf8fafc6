"""Material parameters from observations: windows, estimators, identifiability."""

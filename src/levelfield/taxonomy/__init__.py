"""The taxonomy: which rule can follow which, verified, and what that says about a study's optimizers."""

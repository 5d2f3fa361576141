"""The taxonomy: which rule can follow which, verified; what that says of a study's optimizers, before and after."""

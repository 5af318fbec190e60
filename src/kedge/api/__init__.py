"""Objects, kinds, selectors, codec and validation, with the conventions of Kubernetes."""

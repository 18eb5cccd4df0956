"""Training of targets and drafts: optimiser, steps, checkpoints."""

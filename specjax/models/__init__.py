"""Networks: Flax Linen modules that own parameters and nothing else."""

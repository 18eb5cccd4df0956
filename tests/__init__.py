"""The suite: mock models first, tiny networks second, shipped ones last."""

"""Operations of neural networks: layers' forward and backward operations, losses, and what optimizers do."""

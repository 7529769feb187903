"""Operations of neural networks: layers' forward and backward operations, losses, and the steps of optimizers."""

"""The contenders, as tables name them."""

__all__ = ["CONTENDERS", "NUMPY", "NUMPY_WIDE", "OURS", "TORCH", "TORCH_LAST", "TORCH_LIBRARY"]

NUMPY, NUMPY_WIDE = "NumPy kernels", "NumPy kernels, BLAS with AVX-512"
TORCH_LIBRARY = "torch kernels"
TORCH, TORCH_LAST = "torch eager", "torch eager, channels last"
OURS = (NUMPY, NUMPY_WIDE, TORCH_LIBRARY)
CONTENDERS = (*OURS, TORCH, TORCH_LAST)

"""The contenders, as tables name them."""

__all__ = ["DEFAULT", "ONNX", "ONNX_ALL", "PRODUCTS", "PRODUCTS_ALL", "SEQUENTIAL"]

SEQUENTIAL, DEFAULT = "actorflow, sequential, one core", "actorflow, all cores"
ONNX, ONNX_ALL = "onnxruntime, one core", "onnxruntime, all cores"
PRODUCTS, PRODUCTS_ALL = "products, one thread", "products, a thread per core"

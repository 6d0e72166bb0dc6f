//! A driver without a device: what tests load instead of `libcuda.so.1`.

//! The CUDA driver as values: loaded at run time, every call checked, nothing that panics.

//! Runs the kernels without a device: their threads are fibers, scheduled by a seed.

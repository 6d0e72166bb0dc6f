//! What runs on devices: the interpreter of programs, and where its images come from.

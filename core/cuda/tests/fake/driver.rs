//! The driver without a device, as a library that tests can load.

pub use ccl_fake_driver::{
    ccl_fake_calls, ccl_fake_fail, ccl_fake_failed, ccl_fake_kind, ccl_fake_live, ccl_fake_reset,
};

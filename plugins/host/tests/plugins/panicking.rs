//! A plugin that logs, and panics wherever it is asked to.

use std::ffi::CStr;

use ccl_plugin::net::*;
use ccl_plugin::{Error, Result, Settings};

ccl_plugin::export_net!(Panicking);

/// Panics in `init` if told so, else in most other calls.
pub struct Panicking;

/// A listener whose first call panics, and whose second would be fine.
pub struct Once(bool);

/// Never made.
pub enum Never {}

impl Net for Panicking {
    const NAME: &'static CStr = c"panicking";
    type Listener = Once;
    type Connecting = Never;
    type SendComm = Never;
    type RecvComm = Never;

    fn init(settings: &Settings) -> Result<Panicking> {
        tracing::info!(answer = 42, "hello from the plugin");
        tracing::trace!("nobody wants this");
        assert!(settings.value("panic").is_none(), "told to panic in init");
        Ok(Panicking)
    }

    fn devices(&self) -> Result<u32> {
        Ok(1)
    }

    fn properties(&self, _: u32) -> Result<Properties> {
        panic!("properties of {}", "nothing")
    }

    fn listen(&self, _: u32) -> Result<(Handle, Once)> {
        Ok((Handle([0; 128]), Once(false)))
    }

    fn connect(&self, device: u32, _: &Handle) -> Result<Never> {
        Err(Error::no_device(device).with_peer("nobody"))
    }
}

impl Listener for Once {
    type RecvComm = Never;

    fn accept(&mut self) -> Result<Option<Never>> {
        if !std::mem::replace(&mut self.0, true) {
            std::panic::panic_any(7);
        }
        Ok(None)
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        tracing::warn!("closed");
    }
}

impl Connecting for Never {
    type SendComm = Never;
    fn poll(&mut self) -> Result<Option<Never>> {
        match *self {}
    }
}

impl SendComm for Never {
    fn send(&mut self, _: SendBuffer) -> Result<Option<Request>> {
        match *self {}
    }
    fn test(&mut self, _: Request) -> Result<bool> {
        match *self {}
    }
}

impl RecvComm for Never {
    fn receive(&mut self, _: &[RecvBuffer]) -> Result<Option<Request>> {
        match *self {}
    }
    fn test(&mut self, _: Request, _: &mut [u64]) -> Result<bool> {
        match *self {}
    }
}

//! Contexts, listeners and connections of the network inside.

use std::ffi::CStr;

use ccl_plugin::net::{Connecting, Handle, Listener, Net, Properties};
use ccl_plugin::{Error, Result, Settings};

use super::passed_on;
use super::recv::FaultyRecv;
use super::rules::FaultRules;
use super::send::FaultySend;
use crate::library::wrapped;
use crate::log::LogFn;
use crate::net;

/// A network with faults.
pub(crate) struct FaultNet {
    inner: net::NetContext,
    rules: FaultRules,
}

/// Its listener.
pub(crate) struct FaultyListener(net::Listener, FaultRules);

/// A connection that it makes.
pub(crate) struct FaultyConnecting(net::Connecting, FaultRules);

impl Net for FaultNet {
    const NAME: &'static CStr = c"fault";
    type Listener = FaultyListener;
    type Connecting = FaultyConnecting;
    type SendComm = FaultySend;
    type RecvComm = FaultyRecv;

    fn init(settings: &Settings) -> Result<FaultNet> {
        let found = settings.value(SETTING).and_then(wrapped);
        let Some((plugin, rules)) = found else {
            return Err(Error::invalid("expected the network that has faults, found none"));
        };
        let others: Vec<_> = settings.iter().filter(|(key, _)| *key != SETTING).collect();
        let inner = plugin.init(&others, LogFn::tracing()).map_err(passed_on)?;
        Ok(FaultNet { inner, rules })
    }

    fn devices(&self) -> Result<u32> {
        Ok(self.inner.device_count())
    }

    fn properties(&self, device: u32) -> Result<Properties> {
        self.inner.properties(device).map_err(passed_on)
    }

    fn listen(&self, device: u32) -> Result<(Handle, FaultyListener)> {
        let (handle, listener) = self.inner.listen(device).map_err(passed_on)?;
        Ok((handle, FaultyListener(listener, self.rules)))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<FaultyConnecting> {
        let connecting = self.inner.connect(device, *handle).map_err(passed_on)?;
        Ok(FaultyConnecting(connecting, self.rules))
    }

    fn abort(&self) {
        // A network without this entry is closed instead, by whoever aborts.
        if let Err(error) = self.inner.abort() {
            tracing::debug!(%error, "the network inside cannot be aborted");
        }
    }
}

impl Listener for FaultyListener {
    type RecvComm = FaultyRecv;

    fn accept(&mut self) -> Result<Option<FaultyRecv>> {
        let accepted = self.0.poll().map_err(passed_on)?;
        Ok(accepted.map(|comm| FaultyRecv::new(comm, self.1)))
    }
}

impl Connecting for FaultyConnecting {
    type SendComm = FaultySend;

    fn poll(&mut self) -> Result<Option<FaultySend>> {
        let made = self.0.poll().map_err(passed_on)?;
        Ok(made.map(|comm| FaultySend::new(comm, self.1)))
    }
}

/// The setting by which `init` finds what it wraps.
pub(crate) const SETTING: &str = "ccl.fault";

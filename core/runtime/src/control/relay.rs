//! The control connection as transports use it: to exchange what connecting needs.

use bytes::Bytes;
use ccl_plan::Rank;

use super::Control;
use crate::error::Result;
use crate::transport::Relay;

impl Relay for Control {
    fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()> {
        Control::send(self, to, topic, bytes)
    }

    fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>> {
        Control::try_take(self, from, topic)
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Bytes>> {
        Control::all_gather(self, bytes)
    }

    fn check(&self) -> Result<()> {
        self.alarm().error().map_or(Ok(()), Err)
    }
}

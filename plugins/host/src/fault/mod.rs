//! A network with faults on purpose, around any other: for tests of what stands on networks.
//!
//! It sits at the contract, so what it does is what a plugin could do: a connection that breaks, a test that
//! fails, completions late and out of order, a bit that changes on the way. Connections are not turned and not
//! watched, whatever the network inside offers: a held completion has no descriptor.

mod net;
mod recv;
mod rules;
mod send;
mod slots;

pub(crate) use net::{FaultNet, SETTING};
pub(crate) use rules::FaultRules;

use ccl_plugin::{Code, Error};

use crate::error::NetError;

/// The error of the network inside, as a plugin says it.
#[cold]
fn passed_on(error: NetError) -> Error {
    let detail = error.detail();
    let code = match (detail.code, &error) {
        (0, NetError::Usage(_)) => Code::INVALID,
        (0, NetError::NoDevice(_)) => Code::NO_DEVICE,
        (0, _) => Code::INTERNAL,
        (code, _) => Code(code),
    };
    let passed = Error::new(code, detail.message.clone());
    match &detail.peer {
        Some(peer) => passed.with_peer(peer),
        None => passed,
    }
}

/// The connection was dropped.
#[cold]
fn dropped(messages: u64) -> Error {
    let words = format!("the connection was dropped on purpose after {messages} messages (drop_after)");
    Error::remote(words).with_peer("fault")
}

/// A test failed.
#[cold]
fn failed(request: u64) -> Error {
    let words = format!("the test of request {request} failed on purpose (error_from_test)");
    Error::new(Code::INTERNAL, words).with_peer("fault")
}

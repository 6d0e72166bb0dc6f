//! What a network can fail with, sorted by fault.

use std::fmt;

use ccl_plugin::Code;

/// A failed call into a network plugin, or a plugin that could not be had.
///
/// Cheap to move: one pointer beside the variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The caller's fault: an argument, a setting, a call out of order.
    #[error("{0}")]
    Usage(Box<Detail>),
    /// The peer's: it died, refused, or broke the wire protocol.
    #[error("{0}")]
    Remote(Box<Detail>),
    /// The operating system's or a driver's: a call failed.
    #[error("{0}")]
    System(Box<Detail>),
    /// A deadline of the plugin passed.
    #[error("{0}")]
    Timeout(Box<Detail>),
    /// A message was longer than the buffer posted for it.
    #[error("{0}")]
    TooLong(Box<Detail>),
    /// The plugin does not do this.
    #[error("{0}")]
    Unsupported(Box<Detail>),
    /// There is no such device.
    #[error("{0}")]
    NoDevice(Box<Detail>),
    /// Out of memory or of another counted resource.
    #[error("{0}")]
    Exhausted(Box<Detail>),
    /// The context was aborted.
    #[error("{0}")]
    Aborted(Box<Detail>),
    /// The plugin's own: it panicked, broke the contract, or returned a code nobody knows.
    #[error("{0}")]
    Plugin(Box<Detail>),
    /// No plugin could be loaded; the message has one line for each candidate.
    #[error("{0}")]
    Load(Box<Detail>),
}

/// Where and how it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The plugin's name; empty if none was loaded.
    pub plugin: String,
    /// The entry that failed, as the contract names it.
    pub call: &'static str,
    /// The plugin's words, or the code's meaning if it had none.
    pub message: String,
    /// The peer's address, if known.
    pub peer: Option<String>,
    /// The operating system's error number, if a call failed.
    pub os_error: Option<i32>,
    /// The code the plugin returned; 0 if the host itself refused.
    pub code: i32,
}

impl NetError {
    /// The details, whatever the fault.
    pub fn detail(&self) -> &Detail {
        match self {
            NetError::Usage(detail)
            | NetError::Remote(detail)
            | NetError::System(detail)
            | NetError::Timeout(detail)
            | NetError::TooLong(detail)
            | NetError::Unsupported(detail)
            | NetError::NoDevice(detail)
            | NetError::Exhausted(detail)
            | NetError::Aborted(detail)
            | NetError::Plugin(detail)
            | NetError::Load(detail) => detail,
        }
    }

    pub(crate) fn usage(plugin: &str, call: &'static str, message: impl Into<String>) -> NetError {
        NetError::Usage(Box::new(Detail {
            plugin: plugin.to_string(),
            call,
            message: message.into(),
            ..Detail::default()
        }))
    }

    /// The plugin said success and gave nothing, or gave something it may not.
    pub(crate) fn broken(plugin: &str, call: &'static str, message: impl Into<String>) -> NetError {
        NetError::Plugin(Box::new(Detail {
            plugin: plugin.to_string(),
            call,
            message: message.into(),
            ..Detail::default()
        }))
    }

    pub(crate) fn load(call: &'static str, message: impl Into<String>) -> NetError {
        NetError::Load(Box::new(Detail { call, message: message.into(), ..Detail::default() }))
    }

    /// The error for a code that the plugin returned.
    pub(crate) fn from_code(detail: Detail) -> NetError {
        let variant = match Code(detail.code) {
            Code::INVALID => NetError::Usage,
            Code::SYSTEM => NetError::System,
            Code::REMOTE => NetError::Remote,
            Code::TIMEOUT => NetError::Timeout,
            Code::TOO_LONG => NetError::TooLong,
            Code::UNSUPPORTED => NetError::Unsupported,
            Code::NO_DEVICE => NetError::NoDevice,
            Code::EXHAUSTED => NetError::Exhausted,
            Code::ABORTED => NetError::Aborted,
            _ => NetError::Plugin,
        };
        variant(Box::new(detail))
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.plugin.is_empty() {
            write!(f, "network {}: ", self.plugin)?;
        }
        if !self.call.is_empty() {
            write!(f, "{}: ", self.call)?;
        }
        if let Some(peer) = &self.peer {
            write!(f, "peer {peer}: ")?;
        }
        f.write_str(&self.message)
    }
}

//! The error a plugin author returns.

use std::{fmt, io};

use crate::code::Code;

/// `Result` with a plugin's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call: whose fault, in which words, about which peer.
///
/// The host sees the code as the entry's return value and asks for the rest with `last_error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
    peer: Option<String>,
    os_error: Option<i32>,
}

impl Error {
    /// An error with its code and its text ("expected …, found …").
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), peer: None, os_error: None }
    }

    /// A failed system call; `doing` says what was attempted, as in "bind to 10.0.0.1:4000".
    pub fn system(doing: impl fmt::Display, error: &io::Error) -> Error {
        let mut this = Error::new(Code::SYSTEM, format!("{doing}: {error}"));
        this.os_error = error.raw_os_error();
        this
    }

    /// The caller broke the contract.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::INVALID, message)
    }

    /// The peer is gone or broke the protocol.
    pub fn remote(message: impl Into<String>) -> Error {
        Error::new(Code::REMOTE, message)
    }

    /// There is no device with this index.
    pub fn no_device(device: u32) -> Error {
        Error::new(Code::NO_DEVICE, format!("there is no device {device}"))
    }

    /// The plugin does not offer `what`.
    pub fn unsupported(what: &str) -> Error {
        Error::new(Code::UNSUPPORTED, format!("{what} is not supported"))
    }

    /// The same error, about a peer: its address in whatever form the network has.
    #[must_use]
    pub fn with_peer(mut self, peer: impl fmt::Display) -> Error {
        self.peer.get_or_insert_with(|| peer.to_string());
        self
    }

    /// The same error with another code.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Error {
        self.code = code;
        self
    }

    /// The code the host gets.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The peer's address, if one was involved.
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// The operating system's error number, if a call failed.
    pub fn os_error(&self) -> Option<i32> {
        self.os_error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peer) = &self.peer {
            write!(f, "peer {peer}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

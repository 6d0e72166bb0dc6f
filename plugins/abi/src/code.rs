//! Error codes that cross the C boundary.

use std::fmt;

/// What an entry of a plugin returns: `0` is success, everything else an error.
///
/// "Not yet" is never an error: it is a null out pointer or `done = 0`. Codes may be added; a host
/// treats one it does not know like [`Code::INTERNAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Code(pub i32);

impl Code {
    /// Success.
    pub const OK: Code = Code(0);
    /// The caller broke the contract: an argument or a setting is wrong.
    pub const INVALID: Code = Code(1);
    /// A call to the operating system or a driver failed; the error number says which way.
    pub const SYSTEM: Code = Code(2);
    /// The peer is gone, refused, or broke the wire protocol.
    pub const REMOTE: Code = Code(3);
    /// A deadline of the plugin passed.
    pub const TIMEOUT: Code = Code(4);
    /// A message is longer than the buffer posted for it.
    pub const TOO_LONG: Code = Code(5);
    /// The plugin does not do this.
    pub const UNSUPPORTED: Code = Code(6);
    /// There is no such device, or none at all.
    pub const NO_DEVICE: Code = Code(7);
    /// Out of memory or of another counted resource.
    pub const EXHAUSTED: Code = Code(8);
    /// The context was aborted.
    pub const ABORTED: Code = Code(9);
    /// An invariant of the plugin does not hold.
    pub const INTERNAL: Code = Code(10);
    /// The plugin panicked or threw; the object the call was about is unusable.
    pub const PANIC: Code = Code(11);

    /// The code's meaning in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Code::OK => "success",
            Code::INVALID => "invalid argument",
            Code::SYSTEM => "system call failed",
            Code::REMOTE => "peer failed",
            Code::TIMEOUT => "timed out",
            Code::TOO_LONG => "message too long",
            Code::UNSUPPORTED => "not supported",
            Code::NO_DEVICE => "no such device",
            Code::EXHAUSTED => "out of resources",
            Code::ABORTED => "aborted",
            Code::INTERNAL => "internal error",
            Code::PANIC => "panic in the plugin",
            _ => "unknown error code",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.words(), self.0)
    }
}

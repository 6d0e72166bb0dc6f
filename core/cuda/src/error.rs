//! What a call may come back with.

/// The result of a call to the driver.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed, could not be made, or was refused before it was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver answered with a code.
    #[error(transparent)]
    Failed(Failure),
    /// This driver does not have the function.
    #[error(
        "expected {call} of CUDA driver {}, found driver {} without it; install a newer driver, or do without",
        dotted(*.since), dotted(*.driver)
    )]
    Missing {
        /// The function.
        call: &'static str,
        /// The version that brought it; 0 if every driver should have it.
        since: u32,
        /// The version of this driver.
        driver: u32,
    },
    /// An argument that the driver would have taken for something else.
    #[error("{call}: {what}")]
    Usage {
        /// The function that was not called.
        call: &'static str,
        /// What was expected, what was found, what to do.
        what: String,
    },
}

/// A code of the driver other than success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name} ({code}){}{text}; {}", if .text.is_empty() { "" } else { ": " }, self.fault().remedy())]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// Its code; newer drivers may answer with codes that nobody knows here.
    pub code: i32,
    /// The driver's name for the code.
    pub name: String,
    /// The driver's sentence for the code; may be empty.
    pub text: String,
}

/// Whose fault an error is, and what can still be done after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Arguments, handles or the order of calls; the next call may succeed.
    Usage,
    /// Not enough memory, or too many resources for a launch; less may succeed.
    Memory,
    /// Not permitted while a stream is captured, or the capture is lost.
    Capture,
    /// This device or driver cannot do it.
    Unsupported,
    /// The work on the device failed. Every later call in this context fails too: the process must give the device up.
    Device,
    /// The driver or the system behind it.
    System,
}

impl Error {
    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Failed(failure) => failure.fault(),
            Self::Missing { .. } => Fault::Unsupported,
            Self::Usage { .. } => Fault::Usage,
        }
    }

    /// The function that failed.
    #[must_use]
    pub fn call(&self) -> &'static str {
        match self {
            Self::Failed(Failure { call, .. }) | Self::Missing { call, .. } | Self::Usage { call, .. } => {
                call
            }
        }
    }

    /// The driver's code, if it was asked.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Failed(failure) => Some(failure.code),
            _ => None,
        }
    }

    /// Whether every later call in the same context will fail too.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.fault() == Fault::Device
    }

    /// Whether less memory might have been had.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(code::OUT_OF_MEMORY)
    }
}

impl Failure {
    /// Whose fault it is. Codes that nobody knows here count as the system's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self.code {
            code::OUT_OF_MEMORY | code::LAUNCH_OUT_OF_RESOURCES | code::COOPERATIVE_LAUNCH_TOO_LARGE => {
                Fault::Memory
            }
            47 => Fault::Memory,
            900..=908 => Fault::Capture,
            code::NOT_SUPPORTED | code::NO_BINARY_FOR_DEVICE | code::NOT_PERMITTED => Fault::Unsupported,
            215..=219 | 221..=223 | 225 => Fault::Unsupported,
            code::ECC_UNCORRECTABLE | code::NVLINK_UNCORRECTABLE | code::CONTEXT_IS_DESTROYED => {
                Fault::Device
            }
            226 | 700 | 702 | 710 | 714..=719 | 721 => Fault::Device,
            1 | 101 | 200..=213 | 300 | 301 | 400 | 401 | 500 | 704..=708 | 711..=713 | 912 => Fault::Usage,
            _ => Fault::System,
        }
    }
}

impl Fault {
    /// What to do about it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Usage => "check the arguments and the order of calls",
            Self::Memory => "free device memory, or ask for less",
            Self::Capture => "do it before the capture, or on a thread that captures nothing",
            Self::Unsupported => "do without on this device and driver",
            Self::Device => {
                "the device's context is lost: end this process, and look for the kernel that failed"
            }
            Self::System => "look into the system's log (dmesg, nvidia-smi)",
        }
    }
}

/// The codes that this crate tells apart.
pub mod code {
    /// The arguments make no sense.
    pub const INVALID_VALUE: i32 = 1;
    /// No memory left.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// The library is a stub, made for linking.
    pub const STUB_LIBRARY: i32 = 34;
    /// The driver found no device.
    pub const NO_DEVICE: i32 = 100;
    /// No image for this device.
    pub const NO_BINARY_FOR_DEVICE: i32 = 209;
    /// Memory with an error that could not be corrected.
    pub const ECC_UNCORRECTABLE: i32 = 214;
    /// A link with an error that could not be corrected.
    pub const NVLINK_UNCORRECTABLE: i32 = 220;
    /// Not done yet: no error.
    pub const NOT_READY: i32 = 600;
    /// A kernel read or wrote where nothing is.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// A launch asks for more registers or shared memory than there is.
    pub const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    /// Peer access was enabled before.
    pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    /// Peer access was not enabled.
    pub const PEER_ACCESS_NOT_ENABLED: i32 = 705;
    /// The primary context was destroyed or not yet made.
    pub const CONTEXT_IS_DESTROYED: i32 = 709;
    /// The range is registered already.
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    /// The kernel failed.
    pub const LAUNCH_FAILED: i32 = 719;
    /// More blocks than fit at once.
    pub const COOPERATIVE_LAUNCH_TOO_LARGE: i32 = 720;
    /// Not allowed here, for example inside a host function.
    pub const NOT_PERMITTED: i32 = 800;
    /// The device or the driver cannot.
    pub const NOT_SUPPORTED: i32 = 801;
    /// Graph update refused: instantiate again.
    pub const GRAPH_EXEC_UPDATE_FAILURE: i32 = 910;
}

/// A version as people write it: 12030 is 12.3.
fn dotted(version: u32) -> String {
    if version == 0 { "of any version".into() } else { format!("{}.{}", version / 1000, version % 1000 / 10) }
}

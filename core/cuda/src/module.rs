//! Images loaded into a context or a process, and the functions in them.

use std::ffi::{CString, c_int};
use std::sync::Arc;

use cudarc::driver::sys::CUfunction_attribute as Attribute;

use crate::context::{Context, report};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::launch::Launch;
use crate::load::Driver;
use crate::symbols::Handle;

/// An image loaded into one context. Cheap to clone; unloaded when the last clone and the last function are gone.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// An image loaded once for every context of the process.
#[derive(Clone, Debug)]
pub struct Library {
    loaded: Arc<Loaded>,
    driver: Driver,
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    context: Context,
    handle: Handle,
    /// Keeps the code where it is.
    _loaded: Arc<Loaded>,
}

/// What one launch of a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionAttributes {
    /// Registers of one thread.
    pub registers: u32,
    /// Shared memory that the code itself names.
    pub static_shared_bytes: u32,
    /// Local memory of one thread: more than nothing means spilled registers or arrays.
    pub local_bytes: u32,
    /// Threads of one block, at most.
    pub max_threads: u32,
    /// Compute capability of the code, times ten: 90 for sm_90.
    pub binary_version: u32,
}

#[derive(Debug)]
struct Loaded {
    handle: Handle,
    kind: Kind,
    closed: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
enum Kind {
    Module(Context),
    Library(Driver),
}

// SAFETY: the driver takes handles of modules and libraries from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}
// SAFETY: as above, for functions.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a cubin, a fatbin or PTX. The driver picks what suits the device, and compiles PTX, which takes seconds.
    ///
    /// # Errors
    ///
    /// The driver's: no code for this device, PTX newer than the driver; and of an image shorter than it says.
    pub fn load(context: &Context, image: &[u8]) -> Result<Self> {
        let image = Image::check("cuModuleLoadData", image)?;
        context.within(|| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the image is as long as it says; the driver copies what it needs and stores one handle.
            unsafe { context.table().cuModuleLoadData(&raw mut handle, image.as_ptr()) }?;
            Ok(Self { loaded: Loaded::new(handle, Kind::Module(context.clone())) })
        })
    }

    /// The kernel of this name.
    ///
    /// # Errors
    ///
    /// The driver's, if there is none.
    pub fn function(&self, name: &str) -> Result<Function> {
        let Kind::Module(context) = &self.loaded.kind else {
            return Err(nameless("cuModuleGetFunction", name));
        };
        let text = c_name("cuModuleGetFunction", name)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module lives; the name ends with a zero; the driver stores one handle.
        context.within(|| unsafe {
            context.table().cuModuleGetFunction(&raw mut handle, self.loaded.handle, text.as_ptr())
        })?;
        Ok(Function { context: context.clone(), handle, _loaded: self.loaded.clone() })
    }

    /// Unloads the image unless clones or functions are left, and says whether that worked.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(self) -> Result<()> {
        close(self.loaded)
    }
}

impl Library {
    /// Loads a cubin, a fatbin or PTX for every context of the process.
    ///
    /// # Errors
    ///
    /// As [`Module::load`].
    pub fn load(driver: &Driver, image: &[u8]) -> Result<Self> {
        let image = Image::check("cuLibraryLoadData", image)?;
        let mut handle = std::ptr::null_mut();
        let none: *mut std::ffi::c_void = std::ptr::null_mut();
        // SAFETY: the image is as long as it says; there are no options; the driver stores one handle.
        unsafe {
            driver.table.cuLibraryLoadData(
                &raw mut handle,
                image.as_ptr(),
                none.cast(),
                none.cast(),
                0,
                none.cast(),
                none.cast(),
                0,
            )
        }?;
        let loaded = Loaded::new(handle, Kind::Library(driver.clone()));
        Ok(Self { loaded, driver: driver.clone() })
    }

    /// The kernel of this name, in one context.
    ///
    /// # Errors
    ///
    /// The driver's, if there is none.
    pub fn function(&self, context: &Context, name: &str) -> Result<Function> {
        let text = c_name("cuLibraryGetKernel", name)?;
        let (mut kernel, mut handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the library lives; the name ends with a zero; the driver stores one handle.
        unsafe { self.driver.table.cuLibraryGetKernel(&raw mut kernel, self.loaded.handle, text.as_ptr()) }?;
        // SAFETY: the kernel is of this library; the driver stores one handle.
        context.within(|| unsafe { self.driver.table.cuKernelGetFunction(&raw mut handle, kernel) })?;
        Ok(Function { context: context.clone(), handle, _loaded: self.loaded.clone() })
    }

    /// Unloads the image unless clones or functions are left, and says whether that worked.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(self) -> Result<()> {
        close(self.loaded)
    }
}

impl Function {
    /// The context it runs in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.handle
    }

    /// Brings the code onto the device now. Drivers load code lazily, and a first launch may then wait for the device,
    /// for ever if a running kernel waits for it. Drivers before 12.4 load when the attributes are asked for.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn load(&self) -> Result<()> {
        if !self.context.driver().has("cuFuncLoad") {
            return self.attributes().map(drop);
        }
        // SAFETY: the function lives.
        self.context.within(|| unsafe { self.context.table().cuFuncLoad(self.handle) })
    }

    /// What one launch takes.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn attributes(&self) -> Result<FunctionAttributes> {
        use Attribute as A;

        Ok(FunctionAttributes {
            registers: self.number(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared_bytes: self.number(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: self.number(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: self.number(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            binary_version: self.number(A::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        })
    }

    /// Lets launches have up to this much dynamic shared memory; needed above 48 KiB.
    ///
    /// # Errors
    ///
    /// The driver's, if the device has less.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<()> {
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_int;
        // SAFETY: the function lives.
        self.context
            .within(|| unsafe { self.context.table().cuFuncSetAttribute(self.handle, attribute, value) })
    }

    /// How many blocks one multiprocessor holds at once; the admission check multiplies by the multiprocessors.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, shared_bytes: usize) -> Result<u32> {
        let threads = c_int::try_from(block_threads).unwrap_or(c_int::MAX);
        let mut blocks = 0;
        // SAFETY: the function lives; the driver stores one number.
        self.context.within(|| unsafe {
            let table = self.context.table();
            table.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                self.handle,
                threads,
                shared_bytes,
            )
        })?;
        Ok(blocks.max(0).cast_unsigned())
    }

    /// How many clusters of this launch the device holds at once.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn active_clusters(&self, launch: &Launch) -> Result<u32> {
        let mut clusters = 0;
        launch.with_config(std::ptr::null_mut(), |config| {
            // SAFETY: the function lives; the driver reads the launch and stores one number.
            self.context.within(|| unsafe {
                self.context.table().cuOccupancyMaxActiveClusters(&raw mut clusters, self.handle, config)
            })
        })?;
        Ok(clusters.max(0).cast_unsigned())
    }

    fn number(&self, attribute: Attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the function lives; the driver stores one number.
        self.context.within(|| unsafe {
            self.context.table().cuFuncGetAttribute(&raw mut value, attribute as c_int, self.handle)
        })?;
        Ok(value.max(0).cast_unsigned())
    }
}

impl Loaded {
    fn new(handle: Handle, kind: Kind) -> Arc<Self> {
        Arc::new(Self { handle, kind, closed: false.into() })
    }

    fn release(&self) -> Result<()> {
        if self.closed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Ok(());
        }
        match &self.kind {
            Kind::Module(context) => context.within(|| {
                // SAFETY: loaded once, unloaded once; no function of it is left.
                unsafe { context.table().cuModuleUnload(self.handle) }
            }),
            // SAFETY: as above.
            Kind::Library(driver) => unsafe { driver.table.cuLibraryUnload(self.handle) },
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let driver = match &self.kind {
            Kind::Module(context) => context.driver(),
            Kind::Library(driver) => driver,
        };
        let _relaxed = crate::capture::RelaxedCapture::to_drop(driver);
        report(self.release());
    }
}

fn close(loaded: Arc<Loaded>) -> Result<()> {
    Arc::try_unwrap(loaded).map_or(Ok(()), |loaded| loaded.release())
}

fn c_name(call: &'static str, name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| nameless(call, name))
}

fn nameless(call: &'static str, name: &str) -> Error {
    Error::Usage { call, what: format!("expected the name of a kernel, without zero bytes, found {name:?}") }
}

//! The device, the kernels, and the options of the command line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ccl::Config;
use ccl_cuda::{Context, DeviceMemory, Driver, Function, Module, Stream};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The first device, and where kernels come from.
pub(crate) struct Machine {
    pub(crate) config: Config,
    pub(crate) context: Context,
    image: Option<PathBuf>,
}

impl Machine {
    pub(crate) fn new() -> Outcome<Machine> {
        let config = Config::load()?;
        let path = |name: &str| {
            let found = config.find(name).map(|found| found.value.clone()).unwrap_or_default();
            (!found.is_empty()).then(|| PathBuf::from(found))
        };
        let (library, image) = (path("CCL_CUDA_LIBRARY"), path("CCL_CUDA_IMAGE"));
        let driver = Driver::load(library.as_deref()).map_err(|absent| absent.to_string())?;
        let devices = driver.devices()?;
        let context = Context::primary(devices.first().ok_or("the driver finds no device")?)?;
        Ok(Machine { config, context, image })
    }

    pub(crate) fn stream(&self) -> Outcome<Stream> {
        Ok(Stream::new(&self.context, 0)?)
    }

    /// Device memory of zeros.
    pub(crate) fn zeros(&self, bytes: usize) -> Outcome<DeviceMemory> {
        let (memory, stream) = (DeviceMemory::new(&self.context, bytes.max(256))?, self.stream()?);
        memory.fill(0, &stream)?;
        stream.synchronize()?;
        Ok(memory)
    }

    /// Device memory that holds `bytes`.
    pub(crate) fn holding(&self, bytes: &[u8]) -> Outcome<DeviceMemory> {
        let memory = self.zeros(bytes.len())?;
        memory.write(0, bytes, &self.stream()?)?;
        Ok(memory)
    }

    /// A kernel; nothing if no image holds it.
    pub(crate) fn kernel(&self, name: &str) -> Outcome<Option<Function>> {
        let stem = ccl_kernels::image::image_of(name).ok_or_else(|| format!("{name} is no kernel"))?;
        let image = match &self.image {
            Some(folder) if folder.is_dir() => {
                let endings =
                    ["cubin", "fatbin", "ptx"].map(|ending| folder.join(format!("{stem}.{ending}")));
                endings.iter().find(|file| file.is_file()).map(|file| read(file)).transpose()?
            }
            Some(file) => Some(read(file)?),
            None => ccl_kernels::image::embedded(name).map(<[u8]>::to_vec),
        };
        let Some(image) = image else { return Ok(None) };
        let function = Module::load(&self.context, &image)?.function(name)?;
        function.load()?;
        Ok(Some(function))
    }

    /// A kernel that must be there.
    pub(crate) fn needed(&self, name: &str) -> Outcome<Function> {
        self.kernel(name)?.ok_or_else(|| format!("no image holds {name}: see CCL_CUDA_IMAGE").into())
    }
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// `NAME=VALUE` words.
pub(crate) struct Options {
    values: HashMap<String, String>,
}

impl Options {
    pub(crate) fn of(words: impl Iterator<Item = String>) -> Outcome<Options> {
        let pair = |word: String| -> Outcome<(String, String)> {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found `{word}`"))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        Ok(Options { values: words.map(pair).collect::<Outcome<_>>()? })
    }

    /// A number.
    pub(crate) fn number(&self, name: &str, default: u64) -> Outcome<u64> {
        self.values.get(name).map_or(Ok(default), |text| number(text))
    }

    /// Words.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Numbers with commas between them.
    pub(crate) fn numbers(&self, name: &str, default: &[u64]) -> Outcome<Vec<u64>> {
        self.values
            .get(name)
            .map_or_else(|| Ok(default.to_vec()), |text| text.split(',').map(number).collect())
    }
}

fn number(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| format!("expected a number, found `{text}`").into())
}

/// The time of one of many: `repeat` does so many and waits for them. They last about `wanted` together.
pub(crate) fn time(wanted: Duration, mut repeat: impl FnMut(u64) -> Outcome<()>) -> Outcome<Duration> {
    repeat(2)?;
    let mut count = 1;
    loop {
        let start = Instant::now();
        repeat(count)?;
        let elapsed = start.elapsed();
        if elapsed >= wanted || count >= MOST {
            return Ok(elapsed.div_f64(count as f64));
        }
        let needed = wanted.as_secs_f64() / elapsed.as_secs_f64().max(1e-9) * count as f64 * 1.1;
        count = (needed as u64 + 1).min(20 * count).min(MOST);
    }
}

const MOST: u64 = 1 << 20;

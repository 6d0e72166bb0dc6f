//! A compiler that compiles nothing: it looks whether everything included is there, and gives an image that says what it
//! was asked for. The driver here takes any image and finds kernels by their names.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::fail::{Way, entry};
use crate::state::{fresh, setting};
use crate::symbols::{Out, Text, item, put};

type Answer<T = ()> = Result<T, i32>;

struct Program {
    text: String,
    headers: HashMap<String, String>,
    log: String,
    image: Vec<u8>,
}

static PROGRAMS: LazyLock<Mutex<HashMap<usize, Program>>> = LazyLock::new(Mutex::default);

macro_rules! nvrtc {
    ($($way:ident $name:ident($($argument:ident: $type:ty),*) = $part:ident;)*) => {
        $(
            #[doc = concat!("NVRTC's `", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, private_interfaces, unreachable_pub)]
            pub extern "C" fn $name($($argument: $type),*) -> i32 {
                entry(stringify!($name), Way::$way, || $part($($argument),*))
            }
        )*
    };
}

nvrtc! {
    Always nvrtcVersion(major: Out<i32>, minor: Out<i32>) = version;
    Always nvrtcGetNumSupportedArchs(count: Out<i32>) = arch_count;
    Always nvrtcGetSupportedArchs(place: usize) = archs;
    Always nvrtcCreateProgram(program: Out<usize>, text: Text, name: Text, count: i32, headers: usize, names: usize) = create;
    Afterwards nvrtcDestroyProgram(program: Out<usize>) = destroy;
    Always nvrtcCompileProgram(program: usize, count: i32, options: usize) = compile;
    Always nvrtcGetPTXSize(program: usize, bytes: Out<usize>) = text_bytes;
    Always nvrtcGetPTX(program: usize, place: usize) = text;
    Always nvrtcGetCUBINSize(program: usize, bytes: Out<usize>) = code_bytes;
    Always nvrtcGetCUBIN(program: usize, place: usize) = code;
    Always nvrtcGetProgramLogSize(program: usize, bytes: Out<usize>) = log_bytes;
    Always nvrtcGetProgramLog(program: usize, place: usize) = log;
}

/// NVRTC's `nvrtcGetErrorString`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, unreachable_pub)]
pub extern "C" fn nvrtcGetErrorString(code: i32) -> *const c_char {
    let words = match code {
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => return std::ptr::null(),
    };
    words.as_ptr()
}

/// Programs that were made and not destroyed.
pub(crate) fn live() -> usize {
    programs().len()
}

fn version(major: Out<i32>, minor: Out<i32>) -> Answer {
    let version = setting("CCL_FAKE_NVRTC_VERSION", 13_000) as i32;
    major.set(version / 1000);
    minor.set(version % 1000 / 10);
    Ok(())
}

fn arch_count(count: Out<i32>) -> Answer {
    count.set(known_archs().count() as i32);
    Ok(())
}

fn known_archs() -> impl Iterator<Item = i32> {
    let most = setting("CCL_FAKE_NVRTC_TARGET", 120) as i32;
    ARCHS.into_iter().filter(move |arch| *arch <= most)
}

fn archs(place: usize) -> Answer {
    known_archs().enumerate().for_each(|(index, arch)| put(place, index, arch));
    Ok(())
}

fn create(place: Out<usize>, text: Text, _name: Text, count: i32, headers: usize, names: usize) -> Answer {
    let texts = |list: usize| {
        let each = (0..count as usize).map(|index| item::<Text>(list, index).value());
        each.collect::<Result<Vec<_>, _>>().map_err(|_| INVALID_INPUT)
    };
    let headers = texts(names)?.into_iter().zip(texts(headers)?).collect();
    let text = text.value().map_err(|_| INVALID_INPUT)?;
    let handle = fresh();
    programs().insert(handle, Program { text, headers, log: String::new(), image: Vec::new() });
    place.set(handle);
    Ok(())
}

fn destroy(program: Out<usize>) -> Answer {
    programs().remove(&program.value()).ok_or(INVALID_PROGRAM)?;
    program.set(0);
    Ok(())
}

fn compile(program: usize, count: i32, options: usize) -> Answer {
    let options = (0..count as usize).map(|index| item::<Text>(options, index).value());
    let options = options.collect::<Result<Vec<_>, _>>().map_err(|_| INVALID_OPTION)?;
    let arch = options.iter().find_map(|option| option.strip_prefix("--gpu-architecture="));
    let arch = arch.ok_or(INVALID_OPTION)?;
    let known = |number: &str| known_archs().any(|known| known.to_string() == number);
    let is_code = arch.strip_prefix("sm_").is_some_and(known);
    if !is_code && !arch.strip_prefix("compute_").is_some_and(known) {
        return Err(INVALID_OPTION);
    }
    std::thread::sleep(std::time::Duration::from_millis(setting("CCL_FAKE_NVRTC_MS", 0) as u64));
    of(program, |program| {
        let given =
            |text: &String| text.lines().filter_map(included).all(|name| program.headers.contains_key(name));
        if let Some(text) = program.headers.values().chain([&program.text]).find(|text| !given(text)) {
            program.log = format!("cannot open source file of: {}", text.lines().next().unwrap_or_default());
            return Err(COMPILATION);
        }
        let start: Vec<u8> = if is_code { [&b"\x7fELF"[..], &[0; 60]].concat() } else { b"// ".to_vec() };
        program.image = [start, options.join(" ").into_bytes()].concat();
        Ok(())
    })
}

/// The name in a line that includes a file.
fn included(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("#include \"")?.split('"').next()
}

fn text_bytes(program: usize, bytes: Out<usize>) -> Answer {
    of(program, |program| {
        bytes.set(program.image.len() + 1);
        Ok(())
    })
}

fn text(program: usize, place: usize) -> Answer {
    code(program, place)?;
    of(program, |program| {
        put(place, program.image.len(), 0u8);
        Ok(())
    })
}

fn code_bytes(program: usize, bytes: Out<usize>) -> Answer {
    of(program, |program| {
        bytes.set(program.image.len());
        Ok(())
    })
}

fn code(program: usize, place: usize) -> Answer {
    of(program, |program| {
        program.image.iter().enumerate().for_each(|(index, byte)| put(place, index, *byte));
        Ok(())
    })
}

fn log_bytes(program: usize, bytes: Out<usize>) -> Answer {
    of(program, |program| {
        bytes.set(program.log.len() + 1);
        Ok(())
    })
}

fn log(program: usize, place: usize) -> Answer {
    of(program, |program| {
        let bytes = program.log.bytes().chain([0]);
        bytes.enumerate().for_each(|(index, byte)| put(place, index, byte));
        Ok(())
    })
}

fn of(program: usize, work: impl FnOnce(&mut Program) -> Answer) -> Answer {
    work(programs().get_mut(&program).ok_or(INVALID_PROGRAM)?)
}

fn programs() -> MutexGuard<'static, HashMap<usize, Program>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

const ARCHS: [i32; 7] = [75, 80, 86, 89, 90, 100, 120];

const INVALID_INPUT: i32 = 3;
const INVALID_PROGRAM: i32 = 4;
const INVALID_OPTION: i32 = 5;
const COMPILATION: i32 = 6;

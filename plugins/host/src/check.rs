//! Whether a table can be used, said in words.

use std::ffi::{CStr, c_char};

use abi_stable::library::{AbiHeaderRef, ROOT_MODULE_LOADER_NAME_WITH_NUL, RootModule};
use ccl_plugin::c::{CclNetV1, NET_VERSION};
use libloading::os::unix::Library;

/// A table whose required entries are there, with the entries its plugin lacks as `None`.
pub(crate) struct CheckedNet {
    pub(crate) table: CclNetV1,
    pub(crate) name: String,
}

/// Reads and checks a table.
///
/// # Safety
///
/// `table` is aligned and readable for 8 bytes, and for as many as its first field says if that is
/// plausible (that is the contract of the symbol it was found under); what it points to lives
/// forever.
pub(crate) unsafe fn check_net(table: *const CclNetV1) -> Result<CheckedNet, String> {
    // SAFETY: the caller's contract.
    let size = unsafe { size_of_table(table.cast(), NET_VERSION, CclNetV1::REQUIRED_BYTES) }?;
    let mut copy = CclNetV1::EMPTY;
    let known = size.min(size_of::<CclNetV1>());
    // SAFETY: the plugin says that many bytes are there; ours has room for them. Null function
    // pointers are `None`, so any prefix over EMPTY is a valid table.
    unsafe { std::ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast::<u8>(), known) };
    copy.size = known as u32;
    // SAFETY: the caller's contract.
    let name = unsafe { name_of(copy.name) }?.to_string();
    match missing(&copy) {
        Some(entry) => Err(format!("expected the entry {entry}, found a null pointer")),
        None => Ok(CheckedNet { table: copy, name }),
    }
}

/// A copy of a table of this version, all of which is there.
///
/// # Safety
///
/// As for [`size_of_table`], of a table that begins with its size and version and of which every bit pattern is a value.
pub(crate) unsafe fn whole_table<T: Copy>(table: *const T, version: u32) -> Result<T, String> {
    // SAFETY: the caller's contract; the plugin says that at least so many bytes are there.
    unsafe {
        size_of_table(table.cast(), version, size_of::<T>())?;
        Ok(*table)
    }
}

/// The bytes that a table says it has, if it is of this version and they are at least so many.
///
/// # Safety
///
/// `table` is aligned and readable for 8 bytes, and for as many as its first field says if that is plausible.
unsafe fn size_of_table(table: *const [u32; 2], version: u32, least: usize) -> Result<usize, String> {
    // SAFETY: 8 readable bytes, which all tables begin with.
    let [size, found] = unsafe { table.read() };
    if found != version {
        return Err(format!("expected a table of version {version}, found version {found}"));
    }
    let most = 1 << 16;
    if (size as usize) < least || size as usize > most {
        return Err(format!("expected a table of {least} to {most} bytes, found size {size}"));
    }
    Ok(size as usize)
}

/// A plugin's name.
///
/// # Safety
///
/// Null, or NUL-terminated and valid as long as the library is loaded, so forever.
pub(crate) unsafe fn name_of(name: *const c_char) -> Result<&'static str, String> {
    if name.is_null() {
        return Err("expected a name, found a null pointer".to_string());
    }
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_str() {
        Ok(name) if (1..64).contains(&name.len()) => Ok(name),
        _ => Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
    }
}

/// Refuses a table without one of these entries; whether each is missing.
pub(crate) fn all_there(entries: &[(&str, bool)]) -> Result<(), String> {
    match entries.iter().find(|(_, missing)| *missing) {
        Some((entry, _)) => Err(format!("expected the entry {entry}, found a null pointer")),
        None => Ok(()),
    }
}

/// Compares layouts through `abi_stable` if the library has its header: `M` is what a Rust plugin of the kind exports.
/// What the table is.
pub(crate) fn check_layout<M: RootModule>(library: &Library) -> Result<&'static str, String> {
    // SAFETY: `abi_stable` exports its header under this name; the reference is its address.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) };
    let Ok(header) = header else { return Ok("a C table") };
    (*header)
        .upgrade()
        .and_then(|header| header.init_root_module::<M>())
        .map(|_| "a Rust table whose layout matches")
        .map_err(|error| format!("its layout does not match this host's: {}", one_line(&error.to_string())))
}

/// Layout reports fill pages; the log wants a line.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = words.join(" ");
    if line.len() > LINE_BYTES {
        let cut = (0..=LINE_BYTES).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(cut);
        line.push('…');
    }
    line
}

fn missing(table: &CclNetV1) -> Option<&'static str> {
    macro_rules! first_missing {
        ($($entry:ident)*) => { $( if table.$entry.is_none() { return Some(stringify!($entry)); } )* };
    }
    first_missing!(init finalize last_error devices properties listen accept close_listen connect
        poll_connect close_connect reg_mr dereg_mr isend irecv test_send test_recv close_send close_recv);
    None
}

const LINE_BYTES: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(table: &CclNetV1) -> String {
        // SAFETY: a whole table.
        match unsafe { check_net(table) } {
            Ok(_) => "good".to_string(),
            Err(words) => words,
        }
    }

    #[test]
    fn wrong_tables_are_refused_in_words() {
        let good = *ccl_net_socket::table();
        assert_eq!(verdict(&good), "good");
        assert!(verdict(&CclNetV1 { version: 7, ..good }).contains("version 1, found version 7"));
        assert!(verdict(&CclNetV1 { size: 24, ..good }).contains("found size 24"));
        assert!(verdict(&CclNetV1 { size: u32::MAX, ..good }).contains("found size 4294967295"));
        assert!(verdict(&CclNetV1 { irecv: None, ..good }).contains("entry irecv"));
        assert!(verdict(&CclNetV1 { name: std::ptr::null(), ..good }).contains("name"));
        assert!(verdict(&CclNetV1 { name: c"".as_ptr(), ..good }).contains("name"));
    }

    #[test]
    fn a_shorter_table_lacks_its_tail_and_a_longer_one_is_cut() {
        let good = *ccl_net_socket::table();
        let short = CclNetV1 { size: CclNetV1::REQUIRED_BYTES as u32, ..good };
        // SAFETY: a whole table.
        let checked = unsafe { check_net(&short) }.map_err(|words| words.to_string()).unwrap();
        assert!(checked.table.test_sends.is_none() && checked.table.close_recv.is_some());

        #[repr(C)]
        struct Longer(CclNetV1, usize);
        let longer = Longer(CclNetV1 { size: size_of::<Longer>() as u32, ..good }, 1);
        // SAFETY: a table of the stated size.
        assert!(unsafe { check_net((&raw const longer).cast()) }.is_ok());
    }
}

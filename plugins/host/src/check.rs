//! Whether a table can be used, said in words.

use std::ffi::CStr;

use ccl_plugin::c::{CclNetV1, NET_VERSION};

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
    // SAFETY: 8 readable bytes.
    let (size, version) =
        unsafe { ((&raw const (*table).size).read(), (&raw const (*table).version).read()) };
    if version != NET_VERSION {
        return Err(format!("expected a table of version {NET_VERSION}, found version {version}"));
    }
    let (least, most) = (CclNetV1::REQUIRED_BYTES, 1 << 16);
    if (size as usize) < least || size as usize > most {
        return Err(format!("expected a table of {least} to {most} bytes, found size {size}"));
    }
    let mut copy = CclNetV1::EMPTY;
    let known = (size as usize).min(size_of::<CclNetV1>());
    // SAFETY: the plugin says that many bytes are there; ours has room for them. Null function
    // pointers are `None`, so any prefix over EMPTY is a valid table.
    unsafe { std::ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast::<u8>(), known) };
    copy.size = known as u32;
    let name = name_of(&copy)?;
    match missing(&copy) {
        Some(entry) => Err(format!("expected the entry {entry}, found a null pointer")),
        None => Ok(CheckedNet { table: copy, name }),
    }
}

fn name_of(table: &CclNetV1) -> Result<String, String> {
    if table.name.is_null() {
        return Err("expected a name, found a null pointer".to_string());
    }
    // SAFETY: the contract: NUL-terminated and valid as long as the library is loaded, so forever.
    let name = unsafe { CStr::from_ptr(table.name) };
    match name.to_str() {
        Ok(name) if (1..64).contains(&name.len()) => Ok(name.to_string()),
        _ => Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
    }
}

fn missing(table: &CclNetV1) -> Option<&'static str> {
    macro_rules! first_missing {
        ($($entry:ident)*) => { $( if table.$entry.is_none() { return Some(stringify!($entry)); } )* };
    }
    first_missing!(init finalize last_error devices properties listen accept close_listen connect
        poll_connect close_connect reg_mr dereg_mr isend irecv test_send test_recv close_send close_recv);
    None
}

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

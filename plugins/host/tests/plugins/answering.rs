//! An env plugin that knows one setting, hides another, and panics where a test wants it.

use std::borrow::Cow;
use std::ffi::CStr;

use ccl_plugin::{Env, Result};

struct Answering(String);

impl Env for Answering {
    const NAME: &'static CStr = c"answering";

    fn init(release: &str) -> Result<Answering> {
        tracing::info!(release, "asked to answer");
        Ok(Answering(release.to_owned()))
    }

    fn get<'a>(&self, name: &str, found: Option<&'a str>) -> Option<Cow<'a, str>> {
        assert!(name != "PANIC", "told to panic");
        match name {
            "RELEASE" => Some(self.0.clone().into()),
            "HIDDEN" => None,
            "NUL" => Some("a\0b".into()),
            _ => found.map(Cow::from),
        }
    }
}

ccl_plugin::export_env!(Answering);

//! A tuner that wants the last candidate of each call, says what it hears, and goes wrong where a test wants it: as
//! its setting `config_file` says.

use std::ffi::CStr;

use ccl_plugin::tuner::{Call, Candidate, Comm, Tuner};
use ccl_plugin::{Code, Error, Result, Settings};

struct Advising {
    how: String,
}

impl Tuner for Advising {
    const NAME: &'static CStr = c"advising";

    fn init(comm: &Comm<'_>, settings: &Settings) -> Result<Advising> {
        let how = settings.value("config_file").unwrap_or_default().to_string();
        match how.as_str() {
            "init fails" => return Err(Error::invalid("expected a better file")),
            "init panics" => panic!("told to panic"),
            _ => (),
        }
        tracing::info!(ranks = comm.nranks, nodes = comm.nnodes, reach = comm.reach, "advising");
        Ok(Advising { how })
    }

    fn advise(&mut self, call: &Call<'_>, candidates: &mut [Candidate<'_>]) -> Result<()> {
        let far = call.bytes >= 1 << 20;
        match self.how.as_str() {
            "advise fails" if far => return Err(Error::new(Code::INTERNAL, "out of ideas")),
            "advise panics" if far => panic!("told to panic"),
            "says nothing" => return Ok(()),
            "forbids all" => candidates.iter_mut().for_each(Candidate::forbid),
            "is no number" => candidates[0].cost_ns = f64::NAN,
            "never returns" => std::thread::sleep(std::time::Duration::from_secs(3600)),
            _ => (),
        }
        if let (true, Some(last)) = (self.how.is_empty(), candidates.last_mut()) {
            last.prefer();
            last.channels = 1000;
        }
        Ok(())
    }
}

impl Drop for Advising {
    fn drop(&mut self) {
        tracing::info!("done");
    }
}

ccl_plugin::export_tuner!(Advising);

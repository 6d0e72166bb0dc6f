//! Who the ranks are: ours to start, or a launcher's.

use ccl::discover::launcher::{Job, Launcher};
use ccl::{Error, Result};

use super::args::RanksAs;

/// Where ranks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// This process is one of a launcher's.
    Join(Job),
    /// So many threads of this process.
    Threads(u32),
    /// So many processes, started by this one.
    Processes(u32),
}

/// Decides by the command line and by what a launcher says; `job` is nothing if it was not asked.
pub(crate) fn choose(nranks: Option<u32>, ranks_as: RanksAs, job: Option<Job>) -> Result<Start> {
    match (job.filter(|job| job.launcher != Launcher::Alone), nranks) {
        (Some(job), asked) if ranks_as == RanksAs::Threads => Err(contradiction(&job, asked)),
        (Some(job), Some(asked)) if asked != job.nranks => Err(contradiction(&job, nranks)),
        (Some(job), _) => Ok(Start::Join(job)),
        (None, asked) => {
            let n = asked.unwrap_or(DEFAULT_RANKS);
            Ok(if ranks_as == RanksAs::Threads { Start::Threads(n) } else { Start::Processes(n) })
        }
    }
}

fn contradiction(job: &Job, asked: Option<u32>) -> Error {
    let asked = asked.map_or("ranks".to_owned(), |n| format!("{n} ranks"));
    Error::usage(
        format!(
            "expected to join as rank {} of {}, as {} says, found a command line that asks to start {asked}",
            job.rank, job.nranks, job.launcher
        ),
        "leave out -n and --ranks-as to join, or start ranks all the same with --no-launcher -n",
    )
}

const DEFAULT_RANKS: u32 = 2;

#[cfg(test)]
mod tests {
    use ccl::Rank;
    use ccl::discover::launcher::Meeting;

    use super::*;

    fn job(launcher: Launcher, nranks: u32) -> Job {
        let meeting = Meeting::Nowhere;
        Job { launcher, rank: Rank(0), nranks, local_rank: None, local_nranks: None, meeting }
    }

    #[test]
    fn alone_we_start_ranks() {
        let alone = job(Launcher::Alone, 1);
        for job in [None, Some(alone)] {
            assert_eq!(choose(Some(4), RanksAs::Processes, job.clone()), Ok(Start::Processes(4)));
            assert_eq!(choose(Some(4), RanksAs::Threads, job.clone()), Ok(Start::Threads(4)));
            assert_eq!(choose(None, RanksAs::Processes, job), Ok(Start::Processes(2)));
        }
    }

    #[test]
    fn in_a_job_we_join_or_say_why_not() {
        let job = job(Launcher::OpenMpi, 4);
        assert_eq!(choose(None, RanksAs::Processes, Some(job.clone())), Ok(Start::Join(job.clone())));
        assert_eq!(choose(Some(4), RanksAs::Processes, Some(job.clone())), Ok(Start::Join(job.clone())));
        let error = choose(Some(2), RanksAs::Processes, Some(job.clone())).unwrap_err();
        assert!(error.to_string().contains("Open MPI"), "{error}");
        assert!(choose(Some(4), RanksAs::Threads, Some(job.clone())).is_err());
    }
}

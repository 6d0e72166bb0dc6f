use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<Job> {
    let config = Config::from_vars(pairs.iter().copied())?;
    Job::from_vars(&pairs.iter().copied().collect(), &config)
}

const TORCHRUN: [(&str, &str); 9] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "run7"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];

const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "1234567"),
];

const HYDRA: [(&str, &str); 5] = [
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "4"),
    ("PMI_FD", "6"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "4"),
];

const SLURM: [(&str, &str); 8] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "99"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_JOB_ID", "4242"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_NODELIST", "n[01-02]"),
];

#[test]
fn a_process_without_launcher_is_alone() {
    let job = read(&[("PATH", "/bin")]).unwrap();
    assert_eq!((job.launcher, job.rank, job.nranks), (Launcher::Alone, Rank(0), 1));
    assert!(job.is_on_one_node());
}

#[test]
fn torchrun_gives_everything_and_the_store() {
    let job = read(&TORCHRUN).unwrap();
    let expected = Job {
        launcher: Launcher::Torchrun,
        rank: Rank(3),
        nranks: 8,
        local_rank: Some(1),
        local_nranks: Some(2),
        meeting: Meeting::Tcp {
            endpoint: Endpoint { host: "node1".into(), port: 29500 },
            host: StoreHost::Launcher,
            job: "run7/2".into(),
        },
    };
    assert_eq!(job, expected);
}

#[test]
fn torchs_variables_without_torchrun_leave_the_store_to_rank_0() {
    let job = read(&TORCHRUN[..6]).unwrap();
    assert!(
        matches!(job.meeting, Meeting::Tcp { host: StoreHost::RankZero, ref job, .. } if job == "none/0")
    );
}

#[test]
fn mpi_launchers_are_understood() {
    let job = read(&OPEN_MPI).unwrap();
    assert_eq!((job.launcher, job.rank, job.nranks), (Launcher::OpenMpi, Rank(1), 2));
    assert_eq!(job.meeting, Meeting::Node { job: "1234567".into() });

    let mut spread = OPEN_MPI;
    spread[1].1 = "4";
    assert_eq!(read(&spread).unwrap().meeting, Meeting::Nowhere);

    let job = read(&HYDRA).unwrap();
    assert_eq!((job.launcher, job.rank, job.local_nranks), (Launcher::Hydra, Rank(1), Some(4)));
    assert_eq!(job.meeting, Meeting::Pmi { descriptor: 6 });

    let job = read(&[("MV2_COMM_WORLD_RANK", "0"), ("MV2_COMM_WORLD_SIZE", "2")]).unwrap();
    assert_eq!((job.launcher, job.local_rank), (Launcher::Mvapich, None));
}

#[test]
fn a_slurm_step_counts_its_own_tasks() {
    let with_tasks: Vec<_> = SLURM.into_iter().chain([("SLURM_STEP_TASKS_PER_NODE", "4,3")]).collect();
    let job = read(&with_tasks).unwrap();
    assert_eq!((job.launcher, job.rank, job.nranks), (Launcher::Slurm, Rank(5), 7));
    assert_eq!((job.local_rank, job.local_nranks), (Some(1), Some(3)));
    let Meeting::Tcp { endpoint, host: StoreHost::RankZero, job } = job.meeting else { panic!() };
    assert_eq!((endpoint.host.as_str(), job.as_str()), ("n01", "slurm-4242.0"));
    assert!((15_000..31_000).contains(&endpoint.port));

    let reserved: Vec<_> = SLURM.into_iter().chain([("SLURM_STEP_RESV_PORTS", "12001-12007")]).collect();
    assert!(
        matches!(read(&reserved).unwrap().meeting, Meeting::Tcp { endpoint, .. } if endpoint.port == 12001)
    );
}

#[test]
fn a_slurm_shell_is_not_a_task() {
    let shell = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "1")];
    assert_eq!(read(&shell).unwrap().launcher, Launcher::Alone);
    let mut interactive = SLURM;
    interactive[3].1 = "4294967290";
    assert_eq!(read(&interactive).unwrap().launcher, Launcher::Alone);
}

#[test]
fn the_innermost_launcher_is_believed() {
    let both = |inner: &[(&'static str, &'static str)], outer: &[(&'static str, &'static str)]| {
        let pairs: Vec<_> = outer.iter().chain(inner).copied().collect();
        read(&pairs).unwrap().launcher
    };
    assert_eq!(both(&TORCHRUN, &OPEN_MPI), Launcher::Torchrun);
    assert_eq!(both(&TORCHRUN, &SLURM), Launcher::Torchrun);
    assert_eq!(both(&OPEN_MPI, &SLURM), Launcher::OpenMpi);
    assert_eq!(both(&HYDRA, &SLURM), Launcher::Hydra);
    // srun's own PMI is srun.
    assert_eq!(both(&HYDRA[..3], &SLURM), Launcher::Slurm);
    assert_eq!(both(&[("CCL_RANK", "0"), ("CCL_NRANKS", "2")], &TORCHRUN), Launcher::Settings);
}

#[test]
fn a_launcher_that_speaks_in_part_is_an_error_unless_another_speaks() {
    for (pairs, missing) in [
        (&TORCHRUN[..1], "WORLD_SIZE"),
        (&TORCHRUN[1..2], "RANK"),
        (&TORCHRUN[..5], "MASTER_PORT"),
        (&TORCHRUN[..4], "MASTER_ADDR"),
        (&OPEN_MPI[..1], "OMPI_COMM_WORLD_SIZE"),
        (&HYDRA[..1], "PMI_SIZE"),
        (&[("CCL_NRANKS", "2")][..], "CCL_RANK"),
        (&SLURM[1..], "SLURM_PROCID"),
    ] {
        let error = read(pairs).unwrap_err();
        assert!(error.cause().starts_with(&format!("expected {missing} in the environment")), "{error}");
    }
    let pairs: Vec<_> = [("RANK", "0")].into_iter().chain(OPEN_MPI).collect();
    assert_eq!(read(&pairs).unwrap().launcher, Launcher::OpenMpi);
}

#[test]
fn another_meeting_place_makes_the_master_unnecessary() {
    let mut pairs: Vec<_> = TORCHRUN[..4].to_vec();
    pairs.push(("CCL_COMM_ID", "10.0.0.1:5000"));
    assert_eq!(read(&pairs).unwrap().meeting, Meeting::Nowhere);
    assert_eq!(read(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().meeting, Meeting::Nowhere);
}

#[test]
fn settings_override_the_node() {
    let pairs: Vec<_> =
        TORCHRUN.into_iter().chain([("CCL_LOCAL_RANK", "0"), ("CCL_LOCAL_NRANKS", "1")]).collect();
    let job = read(&pairs).unwrap();
    assert_eq!((job.local_rank, job.local_nranks), (Some(0), Some(1)));
}

#[test]
fn nonsense_is_refused() {
    for (name, value, part) in [
        ("RANK", "8", "rank 8 of 8"),
        ("RANK", "x", "RANK to be a number that fits, found `x`"),
        ("LOCAL_RANK", "2", "local rank 2 of 2"),
        ("LOCAL_WORLD_SIZE", "9", "of 8"),
        ("MASTER_PORT", "99999", "MASTER_PORT"),
    ] {
        let mut pairs: Vec<_> = TORCHRUN.into_iter().filter(|(other, _)| *other != name).collect();
        pairs.push((name, value));
        let error = read(&pairs).unwrap_err();
        assert!(error.cause().contains(part), "{error}");
    }
}

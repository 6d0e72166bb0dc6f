use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar};
use std::thread;
use std::time::Duration;

use super::*;
use crate::Fault;
use crate::bootstrap::store::pmi::Owner;
use crate::bootstrap::store::wire::{Parsed, Request, STOP_WAITING, encode_bytes};
use crate::discover::launcher::Vars;

const ID: [u8; ID_BYTES] = [0xA5; ID_BYTES];

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn very_soon() -> Instant {
    Instant::now() + Duration::from_millis(150)
}

/// A port that nobody listens at now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn scratch() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ccl-store-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A rank's environment.
fn vars(rank: u32, nranks: u32, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = [("CCL_RANK".to_owned(), rank.to_string()), ("CCL_NRANKS".to_owned(), nranks.to_string())];
    own.into_iter().chain(more.iter().map(|(name, value)| ((*name).into(), (*value).into()))).collect()
}

/// One rank as a thread: `rounds` exchanges, the i-th id filled with i.
fn rank(vars: &[(String, String)], rounds: u8, deadline: Instant) -> Result<Vec<u8>> {
    let config = Config::from_vars(vars.iter().cloned())?;
    let job = Job::from_vars(&vars.iter().cloned().collect::<Vars>(), &config)?;
    let mut exchanges = Exchanges::new();
    (0..rounds)
        .map(|round| {
            let make =
                || if job.rank == Rank(0) { Ok([round; ID_BYTES]) } else { panic!("only rank 0 makes") };
            let id = exchanges.exchange(&job, &config, deadline, make)?;
            assert_eq!(id, [id[0]; ID_BYTES]);
            Ok(id[0])
        })
        .collect()
}

/// All ranks as threads; each gets the same ids.
fn all_ranks(nranks: u32, rounds: u8, vars_of: impl Fn(u32) -> Vec<(String, String)>) {
    let all: Vec<_> = (0..nranks).map(vars_of).collect();
    thread::scope(|scope| {
        let ranks: Vec<_> = all.iter().map(|vars| scope.spawn(|| rank(vars, rounds, soon()))).collect();
        for (number, rank) in ranks.into_iter().enumerate() {
            assert_eq!(rank.join().unwrap(), Ok((0..rounds).collect()), "rank {number}");
        }
    });
}

#[test]
fn ranks_meet_at_a_fixed_address() {
    let port = free_port().to_string();
    let comm_id = format!("127.0.0.1:{port}");
    all_ranks(4, 3, |rank| vars(rank, 4, &[("CCL_COMM_ID", &comm_id)]));
    let store = format!("tcp:localhost:{port}");
    all_ranks(3, 2, |rank| vars(rank, 3, &[("CCL_STORE", &store), ("CCL_SECRET", "hunter2")]));
}

/// One rank as a thread, with several addresses: what it made and found.
fn rank_of_several(vars: &[(String, String)], deadline: Instant) -> Result<Vec<u8>> {
    let config = Config::from_vars(vars.iter().cloned())?;
    let job = Job::from_vars(&vars.iter().cloned().collect::<Vars>(), &config)?;
    let make = || Ok([job.rank.0 as u8; ID_BYTES]);
    let ids = Exchanges::new().exchange_all(&job, &config, deadline, make)?;
    assert!(ids.iter().all(|id| *id == [id[0]; ID_BYTES]));
    Ok(ids.iter().map(|id| id[0]).collect())
}

#[test]
fn several_addresses_carry_the_ids_of_the_first_rank_of_each_share() {
    for (nranks, expected, secret) in [(7, [0, 3, 5], ""), (3, [0, 1, 2], "hunter2")] {
        let comm_id = [0; 3].map(|_| format!("127.0.0.1:{}", free_port())).join(",");
        let all: Vec<_> = (0..nranks)
            .map(|rank| vars(rank, nranks, &[("CCL_COMM_ID", &comm_id), ("CCL_SECRET", secret)]))
            .collect();
        thread::scope(|scope| {
            let ranks: Vec<_> =
                all.iter().map(|vars| scope.spawn(|| rank_of_several(vars, soon()))).collect();
            for (number, rank) in ranks.into_iter().enumerate() {
                assert_eq!(rank.join().unwrap(), Ok(expected.to_vec()), "rank {number} of {nranks}");
            }
        });
    }
}

#[test]
fn a_share_without_its_first_rank_is_named_by_all() {
    let comm_id = [0; 2].map(|_| format!("127.0.0.1:{}", free_port())).join(",");
    let all: Vec<_> = (0..4).map(|rank| vars(rank, 4, &[("CCL_COMM_ID", &comm_id)])).collect();
    let deadline = Instant::now() + Duration::from_millis(800);
    thread::scope(|scope| {
        let ranks = [0, 1, 3].map(|rank| {
            scope.spawn({
                let vars = &all[rank];
                move || rank_of_several(vars, deadline).unwrap_err()
            })
        });
        for rank in ranks {
            let error = rank.join().unwrap();
            assert!(error.cause().contains("which rank 2 sets"), "{error}");
        }
    });
    let more = vars(0, 1, &[("CCL_COMM_ID", &comm_id)]);
    assert_eq!(rank_of_several(&more, very_soon()), Ok(vec![0]), "a rank alone needs no address");
    let three = format!("{comm_id},127.0.0.1:9");
    let error = rank_of_several(&vars(0, 2, &[("CCL_COMM_ID", &three)]), very_soon()).unwrap_err();
    assert!(error.cause().contains("at most 2 addresses for 2 ranks, found 3"), "{error}");
    let twice = rank_of_several(&vars(0, 2, &[("CCL_COMM_ID", "a:1,a:1")]), very_soon()).unwrap_err();
    assert!(twice.cause().contains("found a:1 twice"), "{twice}");
}

#[test]
fn torchs_variables_suffice() {
    let port = free_port().to_string();
    all_ranks(3, 2, |rank| {
        let own =
            [("RANK", rank.to_string()), ("WORLD_SIZE", "3".into()), ("MASTER_ADDR", "127.0.0.1".into())];
        own.into_iter()
            .chain([("MASTER_PORT", port.clone())])
            .map(|(name, value)| (name.into(), value))
            .collect()
    });
}

#[test]
fn ranks_of_one_node_meet_by_name_and_leave_nothing() {
    let namespace = format!("test-{}-{:?}", std::process::id(), thread::current().id());
    let mpi = |rank: u32| {
        let numbers =
            [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", 4), ("OMPI_COMM_WORLD_LOCAL_SIZE", 4)];
        let mut vars: Vec<_> = numbers.map(|(name, number)| (name.to_owned(), number.to_string())).into();
        vars.push(("PMIX_NAMESPACE".into(), namespace.clone()));
        vars
    };
    all_ranks(4, 3, mpi);
    all_ranks(4, 1, mpi);
    all_ranks(2, 2, |rank| vars(rank, 2, &[("CCL_STORE", "local")]));
}

#[test]
fn ranks_meet_in_a_directory_that_dead_jobs_have_littered() {
    let folder = scratch();
    let store = format!("file:{}", folder.display());
    let vars_of = |rank| vars(rank, 3, &[("CCL_STORE", &store)]);
    // A rank that nobody answered leaves no trace.
    let error = rank(&vars_of(1), 1, very_soon()).unwrap_err();
    assert!(error.cause().contains("rank 0 has not answered"), "{error}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    // A crashed one does, and so does a crashed rank 0 that had answered it.
    let key = "ccl//id/0";
    let own = folder.join(format!("ccl-{}", &blake3::hash(key.as_bytes()).to_hex()[..32]));
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&own).unwrap();
    let nonce = "0123456789abcdef0123456789abcdef";
    std::fs::write(own.join(format!("hello.1.{nonce}")), "").unwrap();
    std::fs::write(own.join(format!("id.{nonce}")), "stale").unwrap();
    all_ranks(3, 2, vars_of);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_directory_open_to_others_is_refused() {
    let folder = scratch();
    let own = folder.join(format!("ccl-{}", &blake3::hash(b"k").to_hex()[..32]));
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = Directory::new(&folder, Rank(1), 2).get("k", soon()).unwrap_err();
    assert!(error.cause().contains("mode 755"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
    let error = Directory::new(Path::new("/nonexistent"), Rank(1), 2).get("k", soon()).unwrap_err();
    assert!(matches!(error.fault(), Fault::System { .. }), "{error}");
}

#[test]
fn missing_ranks_are_named_and_waiting_ones_name_rank_0() {
    let port = free_port().to_string();
    let comm_id = format!("127.0.0.1:{port}");
    let vars_of = |rank, nranks| vars(rank, nranks, &[("CCL_COMM_ID", &comm_id)]);
    thread::scope(|scope| {
        let (zero, one) = (vars_of(0, 4), vars_of(1, 4));
        let waiting = scope.spawn(move || rank(&zero, 1, Instant::now() + Duration::from_millis(400)));
        assert_eq!(rank(&one, 1, soon()), Ok(vec![0]));
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.cause().contains("missing by the deadline: 2, 3"), "{error}");
        assert_eq!((error.fault(), error.rank()), (&Fault::Timeout, Some(Rank(0))));
    });
    let error = rank(&vars_of(1, 2), 1, very_soon()).unwrap_err();
    for part in ["key `ccl//id/0`", "which rank 0 sets", "the store at 127.0.0.1:", "nobody listens there"] {
        assert!(error.cause().contains(part), "{part}: {error}");
    }
    assert_eq!((error.fault(), error.rank(), error.peer()), (&Fault::Timeout, Some(Rank(1)), Some(Rank(0))));
}

#[test]
fn a_failure_to_make_the_id_reaches_every_rank() {
    let port = free_port().to_string();
    let comm_id = format!("127.0.0.1:{port}");
    let exchange = |number: u32| {
        let vars = vars(number, 2, &[("CCL_COMM_ID", &comm_id)]);
        let config = Config::from_vars(vars.clone()).unwrap();
        let job = Job::from_vars(&vars.into_iter().collect(), &config).unwrap();
        Exchanges::new().exchange(&job, &config, soon(), || Err(Error::usage("no port is free", "free one")))
    };
    thread::scope(|scope| {
        let zero = scope.spawn(|| exchange(0));
        let error = exchange(1).unwrap_err();
        assert!(error.cause().contains("no port is free"), "{error}");
        assert_eq!(*error.fault(), Fault::Remote { rank: Rank(0) });
        assert_eq!(zero.join().unwrap().unwrap_err().cause(), "no port is free");
    });
}

#[test]
fn different_secrets_are_told() {
    let port = free_port().to_string();
    let comm_id = format!("127.0.0.1:{port}");
    let vars_of = |rank, secret| vars(rank, 2, &[("CCL_COMM_ID", &comm_id), ("CCL_SECRET", secret)]);
    thread::scope(|scope| {
        let zero = vars_of(0, "one");
        scope.spawn(move || rank(&zero, 1, soon()));
        let error = rank(&vars_of(1, "other"), 1, soon()).unwrap_err();
        assert!(error.cause().contains("CCL_SECRET"), "{error}");
    });
}

#[test]
fn one_rank_needs_no_store() {
    assert_eq!(rank(&vars(0, 1, &[]), 2, very_soon()), Ok(vec![0, 1]));
}

#[test]
fn no_place_to_meet_is_an_error_that_says_what_to_set() {
    let error = rank(&vars(1, 2, &[]), 1, soon()).unwrap_err();
    assert!(error.to_string().contains("CCL_COMM_ID"), "{error}");
    let ompi =
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let error = rank(&ompi.map(|(name, value)| (name.into(), value.into())), 1, soon()).unwrap_err();
    assert!(error.cause().contains("Open MPI offers no store"), "{error}");
    for (store, part) in [
        ("nfs", "found `nfs`, from CCL_STORE"),
        ("tcp:x", "tcp:HOST:PORT"),
        ("pmi", "PMI_FD"),
        ("file:", "file:"),
    ] {
        let error = rank(&vars(0, 2, &[("CCL_STORE", store)]), 1, soon()).unwrap_err();
        assert!(error.cause().contains(part), "{store}: {error}");
    }
    let locals = [("CCL_STORE", "local"), ("CCL_LOCAL_NRANKS", "1")];
    assert!(rank(&vars(0, 2, &locals), 1, soon()).unwrap_err().cause().contains("all 2 ranks on this node"));
}

/// A server that behaves as torch's: any keys, and everybody may set and wait. It ends with the tests.
fn torch_store(listener: TcpListener) {
    let table = Arc::new((Mutex::new(BTreeMap::new()), Condvar::new()));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let table = table.clone();
            thread::spawn(move || torch_caller(stream.unwrap(), &table.0, &table.1));
        }
    });
}

fn torch_caller(mut stream: TcpStream, table: &Mutex<BTreeMap<Vec<u8>, Vec<u8>>>, changed: &Condvar) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        while let Parsed::Request(request, taken) = Request::parse(&bytes) {
            bytes.drain(..taken);
            let answer = match request {
                Request::Validate => vec![],
                Request::Set { key, value } => {
                    table.lock().unwrap().insert(key, value);
                    changed.notify_all();
                    vec![]
                }
                Request::Get { key } => encode_bytes(&table.lock().unwrap()[&key]),
                Request::Wait { keys } => {
                    let guard = table.lock().unwrap();
                    let lacks = |table: &mut BTreeMap<_, _>| !keys.iter().all(|key| table.contains_key(key));
                    drop(changed.wait_while(guard, lacks));
                    vec![STOP_WAITING]
                }
            };
            stream.write_all(&answer).unwrap();
        }
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&chunk[..count]),
            _ => return,
        }
    }
}

#[test]
fn the_agents_store_is_used_where_there_is_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    torch_store(listener);
    // With the agent's flag, and without, where rank 0 finds the port taken.
    for agent in ["True", "False"] {
        all_ranks(3, 2, |rank| {
            let own = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "3".into()),
                ("MASTER_ADDR", "127.0.0.1".into()),
                ("MASTER_PORT", port.clone()),
                ("TORCHELASTIC_RUN_ID", format!("run-{agent}")),
                ("TORCHELASTIC_USE_AGENT_STORE", agent.into()),
            ];
            own.map(|(name, value)| (name.into(), value)).into()
        });
    }
}

#[test]
fn strangers_do_not_disturb_a_store() {
    let port = free_port();
    let comm_id = format!("127.0.0.1:{port}");
    let stranger = |bytes: &[u8]| {
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        stream.write_all(bytes).unwrap();
        stream
    };
    thread::scope(|scope| {
        let zero = vars(0, 2, &[("CCL_COMM_ID", &comm_id)]);
        let served = scope.spawn(move || rank(&zero, 1, soon()));
        let forged = Request::Set { key: b"ccl//id/0".into(), value: vec![0; 129] };
        let kept = [
            stranger(b"GET / HTTP/1.1\r\n\r\n"),
            stranger(&[0, 1, 2, 3, 4, 5]),
            stranger(&[Request::Validate.encode(), vec![13, 1, 2, 3, 4]].concat()),
            stranger(&[Request::Validate.encode(), forged.encode()].concat()),
            stranger(&[1; 100_000]),
        ];
        drop(stranger(&[0]));
        assert_eq!(rank(&vars(1, 2, &[("CCL_COMM_ID", &comm_id)]), 1, soon()), Ok(vec![0]));
        assert_eq!(served.join().unwrap(), Ok(vec![0]));
        drop(kept);
    });
}

#[test]
fn a_service_that_is_no_store_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint =
        crate::config::Endpoint { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"SSH-2.0").unwrap();
            let _ = stream.read(&mut [0; 64]);
        });
        let error = Client::new(Address::Tcp(endpoint), Rank(1)).get("k", soon()).unwrap_err();
        assert_eq!(*error.fault(), Fault::Network);
    });
}

/// A Hydra for one rank: answers the lines it knows.
fn hydra(mut stream: UnixStream, value: &str, most: usize) -> String {
    let (mut heard, mut put) = (String::new(), value.to_owned());
    let mut bytes = [0; 1];
    let mut line = String::new();
    while stream.read(&mut bytes).unwrap_or(0) == 1 {
        if bytes != *b"\n" {
            line.push(bytes[0] as char);
            continue;
        }
        let answer = match line.split(' ').next().unwrap() {
            "cmd=init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "cmd=get_maxes" => format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={most}"),
            "cmd=get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1".into(),
            "cmd=barrier_in" => "cmd=barrier_out".into(),
            "cmd=finalize" => "cmd=finalize_ack".into(),
            "cmd=put" => {
                put = line.split("value=").nth(1).unwrap().into();
                "cmd=put_result rc=0 msg=success".into()
            }
            "cmd=get" => match put.as_str() {
                "" => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
                put => format!("cmd=get_result rc=0 msg=success value={put}"),
            },
            other => panic!("{other}"),
        };
        heard.push_str(line.split(' ').next().unwrap().strip_prefix("cmd=").unwrap());
        heard.push(' ');
        line.clear();
        stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
    }
    heard
}

#[test]
fn pmi_lines_are_those_of_hydra() {
    let talk = |owner, value: &'static str, most, work: &dyn Fn(&mut Pmi)| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let heard = thread::spawn(move || hydra(theirs, value, most));
        work(&mut Pmi::open(ours.as_raw_fd(), owner, soon()).unwrap());
        drop(ours);
        heard.join().unwrap()
    };
    let heard = talk(Owner::Ccl, "", 1024, &|pmi| pmi.set("k", &ID, soon()).unwrap());
    assert_eq!(heard, "init get_maxes get_my_kvsname put barrier_in finalize ");
    let heard =
        talk(Owner::Mpi, "a5a5", 1024, &|pmi| assert_eq!(pmi.get("k", soon()).unwrap(), [0xA5, 0xA5]));
    assert_eq!(heard, "get_maxes get_my_kvsname barrier_in get ");
    talk(Owner::Ccl, "", 256, &|pmi| {
        let error = pmi.set("k", &ID, soon()).unwrap_err();
        assert!(error.cause().contains("limit of 256"), "{error}");
    });
    talk(Owner::Ccl, "xyz", 1024, &|pmi| assert!(pmi.get("k", soon()).is_err()));
    talk(Owner::Ccl, "", 1024, &|pmi| {
        let error = pmi.get("k", soon()).unwrap_err();
        assert!(error.cause().contains("key_not_found"), "{error}");
    });
}

#[test]
fn a_silent_or_closed_pmi_is_told() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let error = Pmi::open(ours.as_raw_fd(), Owner::Ccl, very_soon()).unwrap_err();
    assert_eq!(*error.fault(), Fault::Timeout);
    drop(theirs);
    let error = Pmi::open(ours.as_raw_fd(), Owner::Ccl, soon()).unwrap_err();
    assert!(error.advice().contains("one exchange per process"), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = Pmi::open(file.as_raw_fd(), Owner::Ccl, soon()).unwrap_err();
    assert!(error.cause().contains("to be a socket"), "{error}");
}

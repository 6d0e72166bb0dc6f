//! Ranks that share the cores of a host.

use ccl_plan::cost::Rates;
use ccl_plan::machine::clock::{Clock, Link};
use ccl_plan::machine::{Case, Stage, walk};
use ccl_plan::{Algorithm, Channel, Collective, Plan, Rank, algorithms};
use ccl_sim::host::{Carried, Host, Sample, calibrate, calls, time};
use ccl_sim::{Clocks, Costs, Error, Job, Scenario, even_case, sweep};

/// Where nothing takes any time.
const FREE: Rates = Rates {
    alpha_ns: 0.0,
    switch_ns: 0.0,
    message_ns: 0.0,
    move_ns: 0.0,
    beta_ns_per_byte: 0.0,
    gamma_ns_per_byte: 0.0,
    far: 0.0,
    ..Rates::SHARED_MEMORY
};

/// Every plan of `n` ranks, with data of several passes.
fn jobs(n: u32) -> impl Iterator<Item = (Plan, Case)> {
    let known = Collective::ALL.into_iter().filter(|c| !c.is_message());
    let plans = known.flat_map(|c| algorithms(c).iter().map(move |a| (c, *a)));
    plans.filter_map(move |(collective, algorithm)| {
        let plan = Plan::new(collective, algorithm, n)?;
        Some((plan, Case { chunk_count: 16, slots: 64, ..even_case(n, 40 * n as usize) }))
    })
}

#[test]
fn with_a_core_for_each_and_no_work_it_is_the_sweep() {
    let host = Host::new(Rates { alpha_ns: 700.0, ..FREE });
    let mut compared = 0;
    for n in [2, 3, 4, 7, 8, 16] {
        for (plan, case) in jobs(n) {
            let job = Job::new(&plan, &case, 4).unwrap();
            let link = |_: Rank, _: Rank, _: Channel| Link { alpha_ns: 700.0, beta_ns_per_byte: 0.0 };
            let swept = sweep(&job, &Costs { link, gamma_ns_per_byte: 0.0 }, Clocks::Full).unwrap();
            let name = format!("{}.{} {case}", plan.collective(), plan.algorithm());
            assert_eq!(calls(&job, &host, 1).unwrap(), [swept.finish_ns], "{name}");
            compared += 1;
        }
    }
    assert!(compared > 150, "{compared}");
}

/// Of the four edges of a ring two leave a core, where each core has two ranks that follow each other; α is that of these.
#[test]
fn ranks_that_follow_each_other_share_a_core() {
    let plan = Plan::new(Collective::AllGather, Algorithm::Ring, 4).unwrap();
    let job = Job::new(&plan, &even_case(4, 4), 4).unwrap();
    let finish_ns = |cores| calls(&job, &Host::new(Rates { cores, alpha_ns: 1000.0, ..FREE }), 1).unwrap();
    assert_eq!((finish_ns(2), finish_ns(4)), (vec![2000.0], vec![3000.0]));
}

#[test]
fn one_core_does_the_work_of_all() {
    let rates = Rates { cores: 1, message_ns: 64.0, move_ns: 8.0, gamma_ns_per_byte: 0.25, ..FREE };
    for n in [2, 3, 4, 7, 8, 16] {
        for (plan, case) in jobs(n) {
            let job = Job::new(&plan, &case, 4).unwrap();
            let link = |_, _| Link { alpha_ns: 0.0, beta_ns_per_byte: 0.0 };
            let walked = walk(&Stage::new(&plan, &case).unwrap(), Clock::new(link, 0.0, 4)).unwrap();
            let spent = walked.domain.spent();
            let expected =
                64.0 * spent.messages as f64 + 8.0 * walked.steps as f64 + 0.25 * spent.folded_bytes as f64;
            let name = format!("{}.{} {case}", plan.collective(), plan.algorithm());
            let found = calls(&job, &Host::new(rates), 3).unwrap();
            assert!((found[2] - 3.0 * expected).abs() < 1e-6 * expected, "{name}: {found:?} {expected}");
        }
    }
}

#[test]
fn bytes_are_the_work_of_all_ends_of_their_way() {
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 4).unwrap();
    let job = Job::new(&plan, &Case { chunk_count: 1 << 20, ..even_case(4, 1 << 20) }, 4).unwrap();
    let of = |rates: Rates, carried| calls(&job, &Host { carried, ..Host::new(rates) }, 1).unwrap()[0];
    let rates = Rates { cores: 1, beta_ns_per_byte: 0.5, ..FREE };
    let near = |found: f64, ends: f64, ns: f64| {
        let expected = ends * 4.0 * f64::from(1 << 20) * ns;
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    };
    // Each of four chunks of 1 MiB is sent 6 times: 12 ends at slots. It is read in all four send buffers, and
    // written to all four receive buffers.
    near(of(rates, Carried::Slots), 20.0, 0.125);
    // Where receivers read what is lent, a byte has two ends. Three folds take theirs through a buffer.
    let pulls = Rates { pulls: true, ..rates };
    near(of(pulls, Carried::Slots), 20.0, 0.25);
    near(of(pulls, Carried::Lent), 16.0, 0.25);
    // Caches: in a call of this length user buffers take a half more.
    let far = Rates { far: 1.0, far_bytes: f64::from(4 << 20), ..rates };
    near(of(far, Carried::Slots), 12.0 + 1.5 * 8.0, 0.125);
}

#[test]
fn one_slot_serves_all_receivers_of_the_same() {
    let of = |collective, algorithm, count, shares| {
        let plan = Plan::new(collective, algorithm, 4).unwrap();
        let job = Job::new(&plan, &Case { chunk_count: 1 << 20, ..even_case(4, count) }, 4).unwrap();
        let rates = Rates { cores: 1, beta_ns_per_byte: 0.5, shares, ..FREE };
        calls(&job, &Host::new(rates), 1).unwrap()[0] / (4.0 * count as f64 * 0.125)
    };
    let near = |found: f64, ends: f64| assert!((found / ends - 1.0).abs() < 1e-9, "{found} {ends}");
    let (broadcast, gather) = (Collective::Broadcast, Collective::AllGather);
    // The root reads its input once, fills three slots or one, and writes its own result; the others read a slot and write theirs.
    near(of(broadcast, Algorithm::Direct, 1 << 20, false), 1.0 + 3.0 + 1.0 + 6.0);
    near(of(broadcast, Algorithm::Direct, 1 << 20, true), 1.0 + 1.0 + 1.0 + 6.0);
    near(of(gather, Algorithm::Direct, 1 << 18, false), 4.0 * 14.0);
    near(of(gather, Algorithm::Direct, 1 << 18, true), 4.0 * 10.0);
    // In a ring nobody sends the same twice. What fits beside its line is never shared.
    near(of(gather, Algorithm::Ring, 1 << 18, true), of(gather, Algorithm::Ring, 1 << 18, false));
    near(of(broadcast, Algorithm::Direct, 1024, true), 11.0);
}

#[test]
fn ranks_on_a_core_take_turns() {
    let plan = Plan::new(Collective::AllReduce, Algorithm::OneShot, 2).unwrap();
    let job = Job::new(&plan, &even_case(2, 2), 4).unwrap();
    let rates = Rates { cores: 1, message_ns: 100.0, switch_ns: 1000.0, alpha_ns: 5e4, ..FREE };
    // A rank receives, is done, sends in the next call and waits: one switch a call, and no α within a core.
    let found = calls(&job, &Host::new(rates), 32).unwrap();
    assert_eq!(found[24] - found[8], 16.0 * 1200.0, "{found:?}");
    assert!((time(&job, &Host::new(rates)).unwrap().finish_ns - 1200.0).abs() < 60.0);
    // Four ranks on two cores: at least a switch a call, and the work of two ranks.
    let plan = Plan::new(Collective::AllReduce, Algorithm::OneShot, 4).unwrap();
    let job = Job::new(&plan, &even_case(4, 2), 4).unwrap();
    let found = time(&job, &Host::new(Rates { cores: 2, alpha_ns: 0.0, ..rates })).unwrap().finish_ns;
    assert!((1600.0..6000.0).contains(&found), "{found}");
}

#[test]
fn calls_take_what_they_take_besides() {
    let plan = Plan::new(Collective::Barrier, Algorithm::Dissemination, 2).unwrap();
    let job = Job::new(&plan, &even_case(2, 0), 4).unwrap();
    let host = Host { call_ns: 40.0, ..Host::new(Rates { alpha_ns: 100.0, ..FREE }) };
    assert!((time(&job, &host).unwrap().finish_ns - 140.0).abs() < 1e-6);
}

#[test]
fn a_plan_whose_ranks_wait_for_each_other_is_an_error() {
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 4).unwrap();
    let case = Case { slots: 1, chunk_count: 4096, ..even_case(4, 1 << 16) };
    let found = time(&Job::new(&plan, &case, 4).unwrap(), &Host::new(Rates { cores: 2, ..FREE }));
    assert!(matches!(found, Err(Error::Deadlock { .. })), "{found:?}");
}

#[test]
fn what_work_takes_is_found_from_times_of_calls() {
    let truth = Host {
        call_ns: 150.0,
        ..Host::new(Rates {
            alpha_ns: 300.0,
            message_ns: 250.0,
            switch_ns: 1700.0,
            beta_ns_per_byte: 0.3,
            cores: 2,
            ..Rates::SHARED_MEMORY
        })
    };
    let samples = |bytes: &[usize]| -> Vec<Sample> {
        let plans = [Algorithm::Ring];
        let each = plans.iter().flat_map(|algorithm| [2, 4].map(|n| (*algorithm, n)));
        each.flat_map(|(algorithm, n)| {
            let plan = Plan::new(Collective::AllReduce, algorithm, n).unwrap();
            let case = |bytes: usize| Case { chunk_count: 8192, ..even_case(n, bytes / 4) };
            bytes.iter().map(move |bytes| Job::new(&plan, &case(*bytes), 4).unwrap()).collect::<Vec<_>>()
        })
        .map(|job| Sample { measured_ns: time(&job, &truth).unwrap().finish_ns, job, host: truth })
        .collect()
    };
    let start = Host::new(Rates { cores: 2, ..Rates::SHARED_MEMORY });
    let found = calibrate(&samples(&[8, 4 << 10, 64 << 10]), &start).unwrap();
    let mut off: Vec<f64> = samples(&[512, 16 << 10, 128 << 10])
        .iter()
        .map(|sample| (sample.time_ns(&found).unwrap() / sample.measured_ns - 1.0).abs())
        .collect();
    off.sort_by(f64::total_cmp);
    assert!(off[off.len() / 2] < 0.15, "{off:?} {found:?}");
}

#[test]
fn a_scenario_may_name_a_host() {
    let text = "collective = \"all_reduce\"\nalgorithms = [\"ring\"]\nranks = [2, 8]\nbytes = [\"1M\"]\n\
                [host]\ncores = 2\nswitch_ns = 1200.0\nbeta_ns_per_byte = 0.2\ncarried = \"lent\"\n";
    let times = |text: &str| -> Vec<f64> {
        let scenario = Scenario::parse(text).unwrap();
        scenario.questions().iter().map(|question| question.answer().unwrap().time_us).collect()
    };
    let shared = times(text);
    let alone = times(&text.replace("cores = 2", "cores = 0"));
    assert_eq!(shared[0], alone[0]);
    assert!(shared[1] > 2.5 * alone[1], "{shared:?} {alone:?}");
    for (from, to, expected) in [
        ("1200.0", "-1.0", "expected numbers from 0 on in [host], found -1"),
        ("\"lent\"", "\"borrowed\"", "unknown variant `borrowed`"),
        ("[host]", "machine = \"summit\"\n[host]", "expected nothing beside [host]"),
        ("[host]", "engine = \"fluid\"\n[host]", "expected nothing beside [host]"),
    ] {
        let error = Scenario::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

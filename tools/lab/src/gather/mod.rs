//! The experiment `gather`: the cost of unmapping and forking, page by page and a run at a time.
//!
//! Everything is measured for both strategies and, where it can do the same, on the host's Linux, round by
//! round in turn.

mod builds;
mod interrupts;
mod teardown;

use crate::measured::measured;
use crate::prelude::*;
use crate::report::Metric;
use crate::site::{Flushes, START};
use crate::technique::GATHER;
use builds::Builds;
use quire_mm::{internals::FlushCause, thp::OrderSet};

/// Bytes of populated memory where nothing else is said.
const BYTES: [u64; 3] = [256 * MIB, 64 * MIB, 8 * MIB];
/// Bytes of memory that are unmapped at a time where it is unmapped in pieces.
const PIECE: u64 = 64 * KIB;

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &GATHER, cases, count };

fn cases(lab: &mut Lab<'_>) -> Done {
    teardown::parts(lab)?;
    builds::part(lab)?;
    interrupts::part(lab)
}

/// Adds all flushes and interrupts of each strategy, and those for each cause that there was.
fn add_flushes(lab: &mut Lab<'_>, name: &str, unit: &'static str, counts: &[Flushes]) {
    let mut add = |metric, value: &dyn Fn(&Flushes) -> u64| {
        let values = counts.iter().map(|it| value(it) as f64).collect();
        lab.add(name, Metric::lower(metric, unit), (values, None));
    };
    add("shootdowns", &|flushes| flushes.shootdowns.iter().sum());
    add("interrupts", &|flushes| flushes.interrupts.iter().sum());
    for (nth, cause) in FlushCause::ALL.iter().enumerate() {
        if counts.iter().any(|flushes| flushes.shootdowns[nth] > 0) {
            add(cause.shootdowns().name(), &|flushes| flushes.shootdowns[nth]);
            add(cause.interrupts().name(), &|flushes| flushes.interrupts[nth]);
        }
    }
}

/// Does `exit`, `munmap` or `fork` on 16 MiB, or a `build`, in folios of `4k`, `32k`, `64k`, `2m` or `all`
/// sizes, with a hyphen between, as in `exit-64k`.
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Done> {
    let (job, folios) = what.split_once('-')?;
    let folios = match folios {
        "4k" => Some(Folios::PAGES),
        "32k" => Some(Folios::of(Order::ALL[3])),
        "64k" => Some(Folios::of(Order::ALL[4])),
        "2m" => Some(Folios::PMD),
        "all" => None,
        _ => return None,
    };
    match (job, folios) {
        ("exit" | "munmap" | "fork", Some(folios)) => Some(count_on(job, techniques, folios, times)),
        ("build", _) => {
            let sizes = folios.map_or(OrderSet::ANONYMOUS, |folios| OrderSet::of(folios.order));
            let builds = Builds::new(techniques, sizes.intersection(OrderSet::ANONYMOUS));
            Some(builds.and_then(|builds| (0..times).try_for_each(|_| builds.run().map(|_| ()))))
        }
        _ => None,
    }
}

fn count_on(job: &str, techniques: Techniques, folios: Folios, times: u64) -> Done {
    const BYTES: u64 = 16 * MIB;
    let site = Site::new(techniques, BYTES, 1, folios)?;
    for _ in 0..times {
        let space = site.space()?;
        Quire::new(&site, &space).populate(0, BYTES, 1, folios)?;
        match job {
            "exit" => site.run(|| measured(|| drop(space))),
            "munmap" => site.run(|| measured(|| space.munmap(START, BYTES)))?,
            _ => drop(site.run(|| measured(|| space.fork()))?),
        }
    }
    Ok(())
}

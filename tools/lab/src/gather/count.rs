//! One action repeated, for tools that count instructions (`scripts/instructions.sh`).

use super::Site;
use super::builds::Builds;
use crate::error::LabError;
use crate::folios::Folios;
use crate::measured::measured;
use crate::process::{Process, Quire};
use quire_arch::Order;
use quire_mm::{space::GatherTechnique, thp::OrderSet};

/// Bytes of populated memory.
const BYTES: u64 = 16 << 20;

/// Does what `name` says `times` times: `exit`, `munmap`, `fork` or `build`, then `4k`, `32k`, `64k`, `2m` or
/// `all`, then the strategy's name, with hyphens between, as in `exit-64k-runs`. `None` for another name.
///
/// The first three are done on 16 MiB, each in a call of `measured`, so that a tool can tell it from what
/// comes before.
///
/// # Errors
///
/// It could not be carried out.
pub fn count(name: &str, times: u64) -> Option<Result<(), LabError>> {
    let mut words = name.split('-');
    let (job, folios, technique) = (words.next()?, words.next()?, words.next()?);
    let technique = GatherTechnique::ALL.into_iter().find(|known| known.name() == technique)?;
    let folios = match folios {
        "4k" => Folios::PAGES,
        "32k" => Folios::of(Order::ALL[3]),
        "64k" => Folios::of(Order::ALL[4]),
        "2m" => Folios::PMD,
        "all" if job == "build" => return Some(build(technique, OrderSet::ANONYMOUS, times)),
        _ => return None,
    };
    match job {
        "exit" | "munmap" | "fork" => Some(count_on(job, technique, folios, times)),
        "build" => {
            let sizes = OrderSet::of(folios.order).intersection(OrderSet::ANONYMOUS);
            Some(build(technique, sizes, times))
        }
        _ => None,
    }
}

fn build(technique: GatherTechnique, sizes: OrderSet, times: u64) -> Result<(), LabError> {
    let builds = Builds::new(technique, sizes)?;
    (0..times).try_for_each(|_| builds.run().map(|_| ()))
}

fn count_on(job: &str, technique: GatherTechnique, folios: Folios, times: u64) -> Result<(), LabError> {
    let site = Site::new(technique, BYTES, 1, folios.config())?;
    for _ in 0..times {
        let space = site.space()?;
        Quire::new(&site, &space).populate(0, BYTES, 1, folios)?;
        match job {
            "exit" => site.run(|| measured(|| drop(space))),
            "munmap" => site.run(|| measured(|| space.munmap(crate::site::START, BYTES)))?,
            _ => drop(site.run(|| measured(|| space.fork()))?),
        }
    }
    Ok(())
}

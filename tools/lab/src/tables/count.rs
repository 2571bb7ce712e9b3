//! One action repeated, for tools that count instructions (`scripts/instructions.sh`).

use super::borders::{Border, Borders};
use super::sweep::{Emptying, Sweep};
use crate::contest::Job;
use crate::error::LabError;
use crate::folios::Folios;
use crate::measured::measured;
use crate::process::{Process, Quire};
use crate::site::Site;
use quire_arch::{Access, Order};
use quire_space::TablesTechnique;

/// Bytes that are faulted in at a time, and those that the loop goes over.
const BYTES: u64 = 16 << 20;
/// Calls at borders.
const CALLS: u64 = 1000;

/// Does what `name` says `times` times: `fault` (4096 page faults), `loop` (8 steps of the posted loop),
/// `beside`, `page`, `whole`, `tables` or `pmds` (1000 pairs of a touch and a `DONTNEED`), then the
/// strategy's name, as in `fault-keep`. `None` for another name. Only what is done in `measured` counts.
///
/// # Errors
///
/// It could not be carried out.
pub fn count(name: &str, times: u64) -> Option<Result<(), LabError>> {
    let (what, technique) = name.split_once('-')?;
    let technique = TablesTechnique::ALL.into_iter().find(|known| known.name() == technique)?;
    let border = Border::ALL.into_iter().find(|(_, _, known)| *known == what).map(|(border, ..)| border);
    match (what, border) {
        ("fault", _) => Some(faults(technique, times)),
        ("loop", _) => {
            let emptying = Emptying::DontNeed { offset: 0, piece: Order::PMD.bytes() };
            Some(rounds(technique, &mut Sweep::new(emptying, 1, times * BYTES, times), times))
        }
        (_, Some(border)) => Some(rounds(technique, &mut Borders::new(border, CALLS), times)),
        _ => None,
    }
}

fn rounds(technique: TablesTechnique, job: &mut impl Job, times: u64) -> Result<(), LabError> {
    let site = Site::new(technique, BYTES, 1, Folios::PAGES.config())?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    (0..times).try_for_each(|_| measured(|| job.round(&mut process)).map(|_| ()))
}

fn faults(technique: TablesTechnique, times: u64) -> Result<(), LabError> {
    let site = Site::new(technique, BYTES, 1, Folios::PAGES.config())?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    for _ in 0..times {
        process.map(0, BYTES)?;
        measured(|| process.touch(0, BYTES, 1, Access::Write))?;
        process.unmap(0, BYTES)?;
    }
    Ok(())
}

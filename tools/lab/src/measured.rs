//! One action repeated, for tools that count instructions (`scripts/instructions.sh`).

use crate::error::Done;
use crate::folios::Folios;
use crate::process::{Job, Process, Quire};
use crate::site::Site;
use quire_mm::Techniques;

/// Calls what is counted: `callgrind --toggle-collect='*measured::measured*'`. The rest is not counted.
#[inline(never)]
pub(crate) fn measured<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Calls `work` with a process of single pages on a machine of its own, for `bytes` of memory.
pub(crate) fn on_quire(
    techniques: Techniques,
    bytes: u64,
    work: impl FnOnce(&mut dyn Process) -> Done,
) -> Done {
    let site = Site::new(techniques, bytes, 1, Folios::PAGES)?;
    let space = site.space()?;
    work(&mut Quire::new(&site, &space))
}

/// Counts `times` rounds of a job there, behind `warm_up` rounds.
pub(crate) fn count_rounds(
    techniques: Techniques,
    bytes: u64,
    (warm_up, times): (u64, u64),
    mut job: impl Job,
) -> Done {
    on_quire(techniques, bytes, |process| {
        (0..warm_up).try_for_each(|_| job(process).map(|_| ()))?;
        (0..times).try_for_each(|_| measured(|| job(process)).map(|_| ()))
    })
}

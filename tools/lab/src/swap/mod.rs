//! The experiment `swap`: what the swap cache saves and costs as the one synchronisation layer.
//!
//! The posted table is also measured on the host's Linux, where the process is root and no swap is in use: it
//! swaps to a compressed device of its own meanwhile, which is removed afterwards.

mod latency;
mod nothing;
mod off;
mod race;
mod store;
pub(crate) mod sweep;

use crate::measured::measured;
use crate::patterns::Contents;
use crate::prelude::*;
use crate::technique::SWAP;
use quire_host::Machine;
use quire_mm::swap::{CompressedRam, Lz4};
use sweep::{Sharing, Sweep};

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &SWAP, cases, count };

fn cases(lab: &mut Lab<'_>) -> Done {
    sweep::posted(lab, Sharing::Private)?;
    sweep::layer(lab)?;
    store::part(lab)?;
    race::part(lab)?;
    off::part(lab)
}

/// A device of so many slots in compressed RAM.
fn compressed(machine: &Machine, slots: u64) -> Done<CompressedRam<HostPlatform, Lz4>> {
    Ok(CompressedRam::new(machine.memory().frames(), slots, Lz4)?)
}

/// Swaps 16 MiB of zeros out or in: `out-4k`, `in-4k`, `out-2m` or `in-2m`.
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Done> {
    let (out, folios) = match what {
        "out-4k" => (true, Folios::PAGES),
        "in-4k" => (false, Folios::PAGES),
        "out-2m" => (true, Folios::PMD),
        "in-2m" => (false, Folios::PMD),
        _ => return None,
    };
    let sweep = Sweep::new(folios, Contents::Zeros, times * 16 * MIB, 16 * MIB);
    Some(count_sweep(&sweep, techniques, times, out))
}

/// Swaps a window of a sweep out or in so many times.
pub(crate) fn count_sweep(sweep: &Sweep, techniques: Techniques, times: u64, out: bool) -> Done {
    let site = sweep.site(techniques)?;
    let space = site.space()?;
    let process = &mut Quire::new(&site, &space);
    sweep.map(process)?;
    for nth in 0..times {
        sweep.fill(process, nth)?;
        if out { measured(|| sweep.out(process, nth)) } else { sweep.out(process, nth) }?;
    }
    for nth in 0..times {
        if out { sweep.back(process, nth) } else { measured(|| sweep.back(process, nth)) }?;
        sweep.give_up(process, nth)?;
    }
    Ok(())
}

//! The same as the table, without a device: the cost of the swap layer itself for each page.
//!
//! Pages are not zeros, which their first word shows, and the device keeps nothing: a write completes at
//! once, and a read leaves the frame as it is. So pages do not come back with their contents, which are not
//! checked.

use super::stage::{Contents, Patterns, Stage, on_stages};
use super::table::Sweep;
use super::{CPU_TIMES, Scale};
use crate::contest::Outcome;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::round_figures;
use quire_arch::{PAGE_SIZE, Platform};
use quire_mm::swap::{DeviceFlags, DeviceMemory, PageIo, Submitted, SwapDevice};
use quire_swap::SwapTechnique;

const SIZES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

/// A device that keeps nothing.
struct Nothing {
    slots: u64,
}

impl<P: Platform> SwapDevice<P> for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, _memory: DeviceMemory<'_, P>, _io: PageIo) -> Submitted {
        Submitted::Done(Ok(()))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, SwapTechnique> {
    Part::new(
        "The layer alone: pages that are not zeros, and a device that keeps nothing",
        SIZES,
        |folios| format!("{} MiB, {folios}", scale.window >> 20),
        |name, folios| measure(name, folios, scale),
    )
}

fn measure(name: &str, folios: Folios, scale: &Scale) -> Result<Measured<SwapTechnique>, LabError> {
    let patterns = Patterns::of(Contents::Numbers);
    let bytes = scale.window;
    let memory = bytes + bytes / PAGE_SIZE * 32;
    let stage =
        |technique| Stage::new(technique, (memory, 1), folios, |_| Ok(Nothing { slots: pages(bytes) }));
    let (outcome, findings) = on_stages((bytes, None), stage, |programs| {
        let mut sweeps: Vec<_> = programs
            .iter()
            .map(|(stage, space)| (stage.technique, Sweep::new(stage, space, &patterns, bytes)))
            .collect();
        Outcome::in_rounds(&mut sweeps, &mut None, (1, scale.rounds), |sweep, _| {
            sweep.fill(0)?;
            let [_, out] = sweep.out(0)?;
            let [_, back] = sweep.back(0)?;
            sweep.give_up(0)?;
            Ok(round_figures([out, back]))
        })
    })?;
    let figures = ["out", "in"].into_iter().enumerate().flat_map(|(nth, way)| {
        outcome.times(&format!("swap-{way} without a device, {name}"), CPU_TIMES, nth)
    });
    Ok(Measured::new(figures, findings))
}

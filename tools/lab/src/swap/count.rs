//! One action repeated, for tools that count instructions (`scripts/instructions.sh`).

use super::Scale;
use super::stage::{Contents, Patterns};
use super::table::{Case, Sweep, stage};
use crate::error::LabError;
use crate::folios::Folios;
use crate::measured::measured;
use quire_swap::SwapTechnique;

/// Does what `name` says `times` times: `out-4k`, `in-4k`, `out-2m` or `in-2m` with 16 MiB of zeros, then the
/// strategy's name, as in `in-4k-all`. `None` for another name. Only what is done in `measured` counts.
///
/// # Errors
///
/// It could not be carried out.
pub fn count(name: &str, times: u64) -> Option<Result<(), LabError>> {
    let (what, technique) = name.rsplit_once('-')?;
    let technique = SwapTechnique::ALL.into_iter().find(|known| known.name() == technique)?;
    let (way, size) = what.split_once('-')?;
    let folios = match size {
        "4k" => Folios::PAGES,
        "2m" => Folios::PMD,
        _ => return None,
    };
    match way {
        "out" => Some(swap(technique, folios, times, true)),
        "in" => Some(swap(technique, folios, times, false)),
        _ => None,
    }
}

fn swap(technique: SwapTechnique, folios: Folios, times: u64, out: bool) -> Result<(), LabError> {
    const BYTES: u64 = 16 << 20;
    let scale = Scale { zeros: times * BYTES, window: BYTES, ..Scale::TINY };
    let case = Case::new(folios, Contents::Zeros, &scale);
    let stage = stage(technique, &case)?;
    let space = stage.program(case.bytes, None)?;
    let patterns = Patterns::of(Contents::Zeros);
    let mut sweep = Sweep::new(&stage, &space, &patterns, BYTES);
    for nth in 0..times {
        sweep.fill(nth)?;
        if out {
            measured(|| sweep.out(nth))?
        } else {
            sweep.out(nth)?
        };
    }
    for nth in 0..times {
        if out {
            sweep.back(nth)?
        } else {
            measured(|| sweep.back(nth))?
        };
        sweep.give_up(nth)?;
    }
    Ok(())
}

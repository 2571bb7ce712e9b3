//! One action repeated, for tools that count instructions (`scripts/instructions.sh`).

use super::moves::{Alignment, Case, Moves};
use crate::contest::Job;
use crate::error::LabError;
use crate::folios::Folios;
use crate::measured::measured;
use crate::process::Quire;
use crate::site::Site;
use quire_space::RemapTechnique;

/// Does what `name` says `times` times: moves 1 GiB back and forth, with a page in each 2 MiB, between
/// places that are aligned to 1 GiB (`gib-pud`), to 2 MiB (`gib-pmd`) or both offset by a page
/// (`gib-same`), or 16 MiB of pages to a place that is offset by a page (`pages-page`) or aligned to 2 MiB
/// (`pages-pmd`); then the strategy's name, as in `gib-pud-puds`. `None` for another name. Only the moves
/// count, but for the first pair.
///
/// # Errors
///
/// It could not be carried out.
pub fn count(name: &str, times: u64) -> Option<Result<(), LabError>> {
    let (what, technique) = name.rsplit_once('-')?;
    let technique = RemapTechnique::ALL.into_iter().find(|known| known.name() == technique)?;
    let (bytes, stride, alignment) = match what {
        "gib-pud" => (1 << 30, 512, Alignment::Pud),
        "gib-pmd" => (1 << 30, 512, Alignment::Pmd),
        "gib-same" => (1 << 30, 512, Alignment::SamePage),
        "pages-pmd" => (16 << 20, 1, Alignment::Pmd),
        "pages-page" => (16 << 20, 1, Alignment::Page),
        _ => return None,
    };
    let case = Case { bytes, alignment, stride, folios: Folios::PAGES, read: false };
    Some(moves(technique, &mut Moves::new(case, 1), times))
}

fn moves(technique: RemapTechnique, job: &mut Moves, times: u64) -> Result<(), LabError> {
    let site = Site::new(technique, 32 << 20, 1, Folios::PAGES.config())?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    job.round(&mut process)?;
    (0..times).try_for_each(|_| measured(|| job.round(&mut process)).map(|_| ()))
}

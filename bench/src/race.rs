//! Contenders that do the same rounds in turn.

use quire_lab::harness::{BlockAllocator, BlockCase, Load, round};
use quire_lab::{LabError, Series, in_turn};

/// Rounds before those that count.
const WARM_UP: usize = 3;

/// An allocator whose type is not known here. A round is behind one dynamic call; inside it everything is
/// static.
pub(crate) trait Entrant {
    fn round(&self, case: BlockCase, load: Load) -> Result<Vec<f64>, LabError>;
}

impl<A: BlockAllocator> Entrant for A {
    fn round(&self, case: BlockCase, load: Load) -> Result<Vec<f64>, LabError> {
        round(self, case, load)
    }
}

/// An allocator in the race, and its times.
pub(crate) struct Contender<'m> {
    pub(crate) name: String,
    allocator: Box<dyn Entrant + 'm>,
    /// One series for each part of the case.
    pub(crate) parts: Vec<Series>,
}

impl<'m> Contender<'m> {
    pub(crate) fn new(name: String, allocator: impl Entrant + 'm) -> Self {
        Self { name, allocator: Box::new(allocator), parts: Vec::new() }
    }
}

/// Runs `rounds` rounds of a case after the warm-up.
pub(crate) fn run(
    contenders: &mut [Contender<'_>],
    case: BlockCase,
    load: Load,
    rounds: usize,
) -> Result<(), LabError> {
    in_turn(contenders, WARM_UP + rounds, |contender, number| {
        let load = Load { seed: load.seed ^ number as u64, ..load };
        let figures = contender.allocator.round(case, load)?;
        if number >= WARM_UP {
            contender.parts.resize_with(figures.len(), Series::default);
            contender.parts.iter_mut().zip(figures).for_each(|(series, figure)| series.add(figure));
        }
        Ok(())
    })
}

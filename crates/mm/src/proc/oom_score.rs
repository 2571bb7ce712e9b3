//! `/proc/PID/oom_score`.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::Platform;
use quire_reclaim::badness;
use quire_space::Space;

/// Writes `/proc/PID/oom_score`: how likely the OOM killer is to choose the program. 0 is never; 666 uses no
/// memory, and 1333 all of it.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn oom_score<P: Platform>(memory: &Memory<P>, space: &Space<'_, P>, out: &mut impl Write) -> fmt::Result {
    let total =
        memory.parts().frames().reports().totals().managed + memory.parts().swap().devices().total_slots();
    let score = badness(&space.figures(), space.oom().score_adj(), total)
        .map_or(0, |badness| (1000 + badness.0 * 1000 / total.max(1) as i64) * 2 / 3);
    writeln!(out, "{}", score.max(0))
}

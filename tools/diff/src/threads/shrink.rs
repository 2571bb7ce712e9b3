//! Making a failing program smaller.

use super::program::{Pause, Program, Turn};
use crate::shrink::{Shrink, leave_out};
use core::ops::Range;

impl Shrink for Program {
    fn count(&self) -> usize {
        self.len()
    }

    /// Counted through setup and threads.
    fn without(&self, left_out: Range<usize>) -> Self {
        let mut place = 0..;
        let mut keep = || !place.next().is_some_and(|place| left_out.contains(&place));
        let mut smaller = self.clone();
        smaller.setup.retain(|_| keep());
        smaller.threads.iter_mut().for_each(|steps| steps.retain(|_| keep()));
        smaller
    }
}

/// The same program in which no thread waits.
fn without_pauses(program: &Program) -> Program {
    let mut faster = program.clone();
    faster.threads.iter_mut().flatten().for_each(|step: &mut Turn| step.pause = Pause::Turns(0));
    faster
}

/// Leaves operations out for as long as `fails` says of the rest that it still does. `fails` decides how
/// often a program is tried: one that failed once need not fail again.
pub(super) fn shrink(program: &Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut program = program.clone();
    let faster = without_pauses(&program);
    if faster != program && fails(&faster) {
        program = faster;
    }
    leave_out(&mut program, |program, smaller| {
        let fails = fails(&smaller);
        if fails {
            *program = smaller;
        }
        fails
    });
    program
}

#[cfg(test)]
mod tests {
    use super::super::generate;
    use super::super::program::Op;
    use super::*;

    #[test]
    fn what_is_left_is_what_it_takes() {
        let mut shrunk = 0;
        for number in 0..50 {
            let program = generate::program(3, number, 3);
            let count = |program: &Program, wanted: fn(&Op) -> bool| {
                program.threads.iter().flatten().filter(|step| wanted(&step.op)).count()
            };
            let fails = |program: &Program| {
                count(program, |op| matches!(op, Op::Write { .. })) >= 2
                    && count(program, |op| matches!(op, Op::Drop { .. })) >= 1
            };
            if fails(&program) {
                let smallest = shrink(&program, fails);
                assert_eq!(smallest.len(), 3);
                assert!(fails(&smallest));
                shrunk += 1;
            }
        }
        assert!(shrunk > 5, "only {shrunk} programs");
    }
}

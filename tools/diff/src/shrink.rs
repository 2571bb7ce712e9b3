//! Minimising a failing program.

use crate::program::{Call, Program, Word};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A program of which operations can be left out.
pub(crate) trait Shrink {
    /// Its operations.
    fn count(&self) -> usize;

    /// The same program without some of its operations.
    fn without(&self, left_out: Range<usize>) -> Self;
}

/// Leaves out operations, from half of them down to single ones. `attempt` tries a smaller program, takes it
/// over if it still fails, and returns whether it does.
pub(crate) fn leave_out<P: Shrink>(program: &mut P, mut attempt: impl FnMut(&mut P, P) -> bool) {
    let mut chunk = program.count().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < program.count() {
            let fewer = program.without(at..(at + chunk).min(program.count()));
            if !attempt(program, fewer) {
                at += chunk;
            }
        }
        chunk /= 2;
    }
}

impl Shrink for Program {
    fn count(&self) -> usize {
        self.ops.len()
    }

    fn without(&self, left_out: Range<usize>) -> Self {
        let mut fewer = self.clone();
        fewer.ops.drain(left_out);
        fewer
    }
}

/// Minimises a program while `fails` says that it still fails: first operations are removed, then arguments
/// simplified. `fails` returns the index of the operation that differs. Tries nothing more when `budget` is
/// used up.
pub(crate) fn shrink(
    mut program: Program,
    failing_step: usize,
    budget: Duration,
    mut fails: impl FnMut(&Program) -> Option<usize>,
) -> Program {
    let begin = Instant::now();
    program.ops.truncate(failing_step + 1);
    let mut attempt = |program: &mut Program, changed: Program| {
        let step = if begin.elapsed() > budget { None } else { fails(&changed) };
        if let Some(step) = step {
            *program = changed;
            program.ops.truncate(step + 1);
        }
        step.is_some()
    };
    loop {
        let size = program.ops.len();
        leave_out(&mut program, &mut attempt);
        if !simplify(&mut program, &mut attempt) && program.ops.len() == size {
            return program;
        }
    }
}

/// Makes arguments simple. Returns whether any was.
fn simplify(program: &mut Program, mut attempt: impl FnMut(&mut Program, Program) -> bool) -> bool {
    let mut any = false;
    let mut at = 0;
    while let Some(call) = program.ops.get(at).map(|op| op.call) {
        for argument in 0..call.arguments().len() {
            let Some(op) = program.ops.get(at) else { return any };
            any |= simpler(call, argument, op.args[argument]).into_iter().any(|simple| {
                let mut changed = program.clone();
                changed.ops[at].args[argument] = simple;
                attempt(program, changed)
            });
        }
        at += 1;
    }
    any
}

/// Simpler values of an argument, simplest first.
fn simpler(call: Call, argument: usize, word: Word) -> Vec<Word> {
    const PAGE: u64 = 4096;
    let Word::Exact(value) = word else {
        return match word {
            Word::Window(offset) if offset % PAGE != 0 => vec![Word::Window(offset & !(PAGE - 1))],
            Word::Area(id, offset) if offset != 0 => vec![Word::Area(id, 0)],
            _ => Vec::new(),
        };
    };
    let is_length = argument == 1 || (call == Call::Mremap && argument == 2);
    let mut values: Vec<u64> = Vec::new();
    if call == Call::Mlockall {
        // Fewer flags may lock, and so populate, what belongs to the oracle.
        return Vec::new();
    }
    if is_length && call != Call::Setrlimit && call != Call::Write {
        values.extend([PAGE, 2 * PAGE, value & !(PAGE - 1)]);
    } else if let Some(kind) = call.arguments().get(argument)
        && matches!(kind, crate::program::Argument::Bits(_))
    {
        values.push(0);
        values.extend((0..64).map(|bit| value & !(1 << bit)));
    } else if call == Call::Write && argument == 1 {
        values.push(0x90);
    }
    values.retain(|simple| *simple < value);
    values.dedup();
    values.into_iter().map(Word::Exact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let program = Program::random(7, 3, 200);
        let culprit =
            program.ops.iter().rfind(|op| op.call == Call::Write).expect("some operation writes").id;
        let find = |program: &Program| program.ops.iter().position(|op| op.id == culprit);
        let step = find(&program).expect("it is there");
        let small = shrink(program, step, Duration::from_secs(60), find);
        assert_eq!(small.ops.len(), 1);
        assert_eq!(small.ops[0].args[1], Word::Exact(0x90));
    }
}

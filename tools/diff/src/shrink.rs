//! Making a failing program small.

use crate::program::{Call, Program, Word};
use std::time::{Duration, Instant};

/// Makes a program as small as can be while `fails` says that it still fails: first whole operations go, then
/// arguments become simple. `fails` returns the index of the operation that differs. Stops when `budget` is
/// used up.
pub(crate) fn shrink(
    mut program: Program,
    failing_step: usize,
    budget: Duration,
    mut fails: impl FnMut(&Program) -> Option<usize>,
) -> Program {
    let begin = Instant::now();
    program.ops.truncate(failing_step + 1);
    let mut attempt = |program: &mut Program, changed: Program| match fails(&changed) {
        Some(step) => {
            *program = changed;
            program.ops.truncate(step + 1);
            true
        }
        None => false,
    };
    loop {
        let size = program.ops.len();
        let mut chunk = program.ops.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            while at < program.ops.len() {
                if begin.elapsed() > budget {
                    return program;
                }
                let mut fewer = program.clone();
                fewer.ops.drain(at..(at + chunk).min(program.ops.len()));
                if !attempt(&mut program, fewer) {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        let simpler = simplify(&mut program, begin, budget, &mut attempt);
        if program.ops.len() == size && !simpler {
            return program;
        }
    }
}

/// Makes arguments simple. Returns whether any was.
fn simplify(
    program: &mut Program,
    begin: Instant,
    budget: Duration,
    attempt: &mut impl FnMut(&mut Program, Program) -> bool,
) -> bool {
    let mut any = false;
    let mut at = 0;
    while at < program.ops.len() {
        for argument in 0..program.ops[at].call.arguments().len() {
            for simple in simpler(program.ops[at].call, argument, program.ops[at].args[argument]) {
                if begin.elapsed() > budget || at >= program.ops.len() {
                    return any;
                }
                let mut changed = program.clone();
                changed.ops[at].args[argument] = simple;
                if attempt(program, changed) {
                    any = true;
                    break;
                }
            }
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

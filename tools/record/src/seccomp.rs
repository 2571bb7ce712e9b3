//! The filter that stops a program at memory calls only.

use super::calls::{ALWAYS, CLONE_IN_32_BIT, CLONE3_IN_32_BIT, FOREIGN, SOMETIMES, WITH_BIT, WITHOUT_STOP};
use libc::sock_filter;

/// `AUDIT_ARCH_X86_64`.
pub(crate) const ARCH_X86_64: u32 = 0xc000_003e;
/// Call numbers of the x32 ABI have this bit; they go up to [`X32_END`]. What lies beyond is no call at all.
pub(crate) const X32_BIT: u32 = 0x4000_0000;
/// See [`X32_BIT`].
pub(crate) const X32_END: u32 = X32_BIT + 1024;

/// What this filter tells the tracer: other filters of the program may leave calls to a tracer, too.
pub(crate) const MARK: u32 = 0x5154;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn verdict(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

/// Where the low half of an argument is.
fn argument(number: usize) -> u32 {
    16 + 8 * number as u32
}

/// Skips `skip` instructions unless the accumulator has one of these bits.
fn unless_any(bits: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits) }
}

/// Skips `skip` instructions unless the accumulator is `value`.
fn unless_equal(value: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value) }
}

/// The verdict on calls that stop.
const STOPS: u32 = libc::SECCOMP_RET_TRACE | MARK;

/// Which of the memory calls stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stops {
    /// All.
    All,
    /// Those of which more than their registers is recorded (not those of `calls::WITHOUT_STOP`, but `mmap`
    /// of files).
    WhereMoreIsRead,
}

/// The filter as a program for the kernel. Calls that it never stops are allowed with any arguments, so
/// the kernel can decide them by a bitmap without running it.
pub(crate) fn program(stops: Stops) -> Vec<sock_filter> {
    let trace = verdict(STOPS);
    let allow = verdict(libc::SECCOMP_RET_ALLOW);
    let mut foreign = vec![load(OFFSET_NUMBER)];
    for number in FOREIGN {
        foreign.extend([unless_equal(number, 1), trace]);
    }
    // Those that may make a thread which has no tracer. The flags of the second are in memory.
    let check = [load(argument(0)), unless_any(libc::CLONE_UNTRACED as u32, 1), trace, allow];
    foreign.push(unless_equal(CLONE_IN_32_BIT, check.len() as u8));
    foreign.extend(check);
    foreign.extend([unless_equal(CLONE3_IN_32_BIT, 1), trace, allow]);

    let mut code = vec![load(OFFSET_ARCH)];
    let equal = sock_filter {
        jt: foreign.len() as u8,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, ARCH_X86_64)
    };
    code.push(equal);
    code.extend(foreign);
    code.push(load(OFFSET_NUMBER));
    let at_least = |value, yes, no| sock_filter {
        jt: yes,
        jf: no,
        ..statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value)
    };
    code.extend([at_least(X32_BIT, 0, 2), at_least(X32_END, 1, 0), trace]);
    for (number, _) in ALWAYS {
        if stops == Stops::All || !WITHOUT_STOP.contains(&number) {
            code.extend([unless_equal(number as u32, 1), trace]);
        } else if number == libc::SYS_mmap {
            let check = [load(argument(3)), unless_any(libc::MAP_ANONYMOUS as u32, 1), allow, trace];
            code.push(unless_equal(number as u32, check.len() as u8));
            code.extend(check);
        }
    }
    for rule in SOMETIMES {
        // The low half of the argument: the kernel reads no more of it either.
        let mut check = vec![load(argument(rule.arg))];
        for value in rule.values {
            check.extend([unless_equal(*value, 1), trace]);
        }
        check.push(allow);
        code.push(unless_equal(rule.call as u32, check.len() as u8));
        code.extend(check);
    }
    for (number, arg, bit) in WITH_BIT {
        let check = [load(argument(arg)), unless_any(bit, 1), trace, allow];
        code.push(unless_equal(number as u32, check.len() as u8));
        code.extend(check);
    }
    code.push(allow);
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Class, classify};

    /// What the filter returns for a call.
    fn verdict_of(code: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = code[at];
            at += 1;
            let holds = match u32::from(code) & 0xf7 {
                libc::BPF_RET => return k,
                0x20 => {
                    accumulator = match k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCH => arch,
                        offset => args[(offset as usize - 16) / 8] as u32,
                    };
                    continue;
                }
                0x15 => accumulator == k,
                0x35 => accumulator >= k,
                0x45 => accumulator & k != 0,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    /// The file behind the descriptor of an `mmap` can be read at a stop only.
    fn needs_no_stop(number: u64, args: &[u64; 6]) -> bool {
        let number = number as i64;
        let maps_file = number == libc::SYS_mmap && args[3] as i32 & libc::MAP_ANONYMOUS == 0;
        WITHOUT_STOP.contains(&number) && !maps_file
    }

    #[test]
    fn the_calls_stop_that_are_to_be_seen() {
        let argument_sets = [
            [0; 6],
            [0, 0, 0, 0x22, 0, 0],
            [0, 0, 3, 0x2, 0, 0],
            [3, 3, 1, 0x32, 1, 1],
            [0, 0x241, 0x241, 0, 0, 0],
        ];
        for stops in [Stops::All, Stops::WhereMoreIsRead] {
            let code = program(stops);
            for number in 0..480 {
                for args in argument_sets {
                    let only_asks = i64::from(number) == libc::SYS_prlimit64 && args[2] == 0;
                    let is_told = stops == Stops::WhereMoreIsRead && needs_no_stop(number.into(), &args);
                    let expected = classify(number.into(), &args) != Class::Other && !is_told;
                    let found = verdict_of(&code, ARCH_X86_64, number, args) == STOPS;
                    assert!(found == expected || only_asks, "{stops:?} {number} {args:?}");
                }
                let foreign = |flags| verdict_of(&code, 0x4000_0003, number, [flags, 0, 0, 0, 0, 0]) == STOPS;
                let stops = FOREIGN.contains(&number) || number == CLONE3_IN_32_BIT;
                assert_eq!(foreign(libc::CLONE_VM as u64), stops);
                assert_eq!(foreign(libc::CLONE_UNTRACED as u64), stops || number == CLONE_IN_32_BIT);
            }
            assert_eq!(verdict_of(&code, ARCH_X86_64, X32_BIT + 9, [0; 6]), STOPS);
        }
    }
}

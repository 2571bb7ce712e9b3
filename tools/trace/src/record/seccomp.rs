//! The filter that stops a program at memory calls only.

use super::calls::{ALWAYS, FOREIGN, SOMETIMES};
use libc::sock_filter;

/// `AUDIT_ARCH_X86_64`.
pub(crate) const ARCH_X86_64: u32 = 0xc000_003e;
/// Call numbers of the x32 ABI have this bit; they go up to [`X32_END`]. What lies beyond is no call at all.
pub(crate) const X32_BIT: u32 = 0x4000_0000;
/// See [`X32_BIT`].
pub(crate) const X32_END: u32 = X32_BIT + 1024;

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

/// Skips `skip` instructions unless the accumulator is `value`.
fn unless_equal(value: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value) }
}

/// The filter as a program for the kernel. Calls that it never stops are allowed whatever their arguments
/// are, which lets the kernel decide them by a bitmap without running it.
pub(crate) fn program() -> Vec<sock_filter> {
    let trace = verdict(libc::SECCOMP_RET_TRACE);
    let allow = verdict(libc::SECCOMP_RET_ALLOW);
    let mut foreign = vec![load(OFFSET_NUMBER)];
    for number in FOREIGN {
        foreign.extend([unless_equal(number, 1), trace]);
    }
    foreign.push(allow);

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
        code.extend([unless_equal(number as u32, 1), trace]);
    }
    for rule in SOMETIMES {
        // The low half of the argument: the kernel looks at no more of it either.
        let offset = 16 + 8 * rule.arg as u32;
        let mut check = vec![load(offset)];
        for value in rule.values {
            check.extend([unless_equal(*value, 1), trace]);
        }
        check.push(allow);
        code.push(unless_equal(rule.call as u32, check.len() as u8));
        code.extend(check);
    }
    code.push(allow);
    code
}

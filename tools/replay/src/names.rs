//! Names of calls and of their arguments, for gaps.

use quire_mm::abi::CallNumber;
use std::borrow::Cow;
use std::fmt::Write;

const ADVICE: &[(u64, &str)] =
    &[(9, "MADV_REMOVE"), (25, "MADV_COLLAPSE"), (100, "MADV_HWPOISON"), (101, "MADV_SOFT_OFFLINE")];

const PRCTL_OPTIONS: &[(u64, &str)] = &[
    (35, "PR_SET_MM"),
    (41, "PR_SET_THP_DISABLE"),
    (42, "PR_GET_THP_DISABLE"),
    (65, "PR_SET_MDWE"),
    (67, "PR_SET_MEMORY_MERGE"),
    (0x5356_4d41, "PR_SET_VMA"),
];

const ARCH_PRCTL_CODES: &[(u64, &str)] = &[
    (0x2001, "ARCH_MAP_VDSO_X32"),
    (0x2002, "ARCH_MAP_VDSO_32"),
    (0x2003, "ARCH_MAP_VDSO_64"),
    (0x5001, "ARCH_SHSTK_ENABLE"),
    (0x5002, "ARCH_SHSTK_DISABLE"),
];

const MAP_KINDS: &[&str] = &["", "MAP_SHARED", "MAP_PRIVATE", "MAP_SHARED_VALIDATE"];
const MAP_DROPPABLE: u64 = 8;
const MAP_FLAGS: &[(u64, &str)] = &[
    (0x10, "MAP_FIXED"),
    (0x20, "MAP_ANONYMOUS"),
    (0x40, "MAP_32BIT"),
    (0x80, "MAP_ABOVE4G"),
    (0x100, "MAP_GROWSDOWN"),
    (0x2000, "MAP_LOCKED"),
    (0x4000, "MAP_NORESERVE"),
    (0x8000, "MAP_POPULATE"),
    (0x1_0000, "MAP_NONBLOCK"),
    (0x2_0000, "MAP_STACK"),
    (0x4_0000, "MAP_HUGETLB"),
    (0x8_0000, "MAP_SYNC"),
    (0x10_0000, "MAP_FIXED_NOREPLACE"),
];

/// The name of a number, or the number.
fn named(table: &[(u64, &'static str)], number: u64) -> Cow<'static, str> {
    let found = table.iter().find(|(known, _)| *known == number);
    found.map_or_else(|| Cow::Owned(format!("{number:#x}")), |(_, name)| Cow::Borrowed(*name))
}

/// The flags of `mmap` in words.
fn map_flags(word: u64) -> String {
    let kind = word & 0xf;
    let mut text = match MAP_KINDS.get(kind as usize) {
        Some(name) => (*name).to_owned(),
        None if kind == MAP_DROPPABLE => "MAP_DROPPABLE".to_owned(),
        None => format!("{kind:#x}"),
    };
    let mut rest = word & !0xf;
    for (bit, name) in MAP_FLAGS {
        if rest & bit != 0 {
            text.push('|');
            text.push_str(name);
            rest &= !bit;
        }
    }
    if rest != 0 {
        // Writing to a string does not fail.
        let _ = write!(text, "|{rest:#x}");
    }
    text.trim_start_matches('|').to_owned()
}

/// The name of a call.
pub(super) fn of_call(number: CallNumber) -> Cow<'static, str> {
    number.name().map_or_else(|| Cow::Owned(format!("call {}", number.raw())), Cow::Borrowed)
}

/// Names a call that is not built, or a form of one, as specifically as useful.
pub(super) fn of_form(number: CallNumber, args: &[u64; 6]) -> String {
    let name = of_call(number);
    match (number, i64::from(number.raw())) {
        (CallNumber::Madvise, _) => format!("{name} with {}", named(ADVICE, args[2] & 0xffff_ffff)),
        (CallNumber::Mmap, _) => format!("{name} with {}", map_flags(args[3])),
        (CallNumber::PkeyMprotect, _) => format!("{name} with a key"),
        (_, libc::SYS_prctl) => format!("{name} {}", named(PRCTL_OPTIONS, args[0] & 0xffff_ffff)),
        (_, libc::SYS_arch_prctl) => format!("{name} {}", named(ARCH_PRCTL_CODES, args[0] & 0xffff_ffff)),
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_has_a_name() {
        let name = |number, args| of_form(CallNumber::from_raw(number), &args);
        assert_eq!(name(67, [0; 6]), "shmdt");
        assert_eq!(name(207, [0; 6]), "io_destroy");
        assert_eq!(name(28, [0, 0, 100, 0, 0, 0]), "madvise with MADV_HWPOISON");
        assert_eq!(name(28, [0, 0, 77, 0, 0, 0]), "madvise with 0x4d");
        assert_eq!(name(157, [0x5356_4d41, 0, 0, 0, 0, 0]), "prctl PR_SET_VMA");
        let flags = |word| name(9, [0, 0, 0, word, 0, 0]);
        assert_eq!(flags(0x28), "mmap with MAP_DROPPABLE|MAP_ANONYMOUS");
        assert_eq!(flags(0x8400_0022), "mmap with MAP_PRIVATE|MAP_ANONYMOUS|0x84000000");
        assert_eq!(name(9999, [0; 6]), "call 9999");
    }
}

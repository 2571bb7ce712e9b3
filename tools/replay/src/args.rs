//! What the arguments of memory calls say. Flags are as wide as a recorded argument.

use quire_trace::event::Call;
use std::ops::Range;

pub(crate) const MAP_SHARED: u64 = libc::MAP_SHARED as u64;
pub(crate) const MAP_PRIVATE: u64 = libc::MAP_PRIVATE as u64;
pub(crate) const MAP_SHARED_VALIDATE: u64 = libc::MAP_SHARED_VALIDATE as u64;
pub(crate) const MAP_TYPE: u64 = libc::MAP_TYPE as u64;
pub(crate) const MAP_FIXED: u64 = libc::MAP_FIXED as u64;
pub(crate) const MAP_ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
pub(crate) const MAP_32BIT: u64 = libc::MAP_32BIT as u64;
pub(crate) const MAP_LOCKED: u64 = libc::MAP_LOCKED as u64;
pub(crate) const MAP_NORESERVE: u64 = libc::MAP_NORESERVE as u64;
pub(crate) const MAP_POPULATE: u64 = libc::MAP_POPULATE as u64;
pub(crate) const MAP_NONBLOCK: u64 = libc::MAP_NONBLOCK as u64;
pub(crate) const MAP_HUGETLB: u64 = libc::MAP_HUGETLB as u64;
pub(crate) const MAP_FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
pub(crate) const MREMAP_MAYMOVE: u64 = libc::MREMAP_MAYMOVE as u64;
pub(crate) const MREMAP_FIXED: u64 = libc::MREMAP_FIXED as u64;
pub(crate) const MLOCK_ONFAULT: u64 = libc::MLOCK_ONFAULT as u64;
/// Memory that can be read, written or executed.
pub(crate) const PROTECTIONS: u64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;

/// Whether `mmap` with these flags makes a shared mapping.
pub(crate) fn is_shared(flags: u64) -> bool {
    matches!(flags & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE)
}

/// Whether an advice brings in what it is for.
pub(crate) fn populates(advice: u64) -> bool {
    matches!(advice as i32, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE)
}

/// How memory is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    /// It comes in at once.
    Now,
    /// Each page at its first touch.
    OnFault,
    /// Not.
    Not,
}

/// What a call that succeeds does to the locks of its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Locking {
    /// Whether what is mapped from now on is locked, and comes in at once; `None` where that stays as it was.
    pub(crate) future: Option<bool>,
    /// The addresses whose mappings are locked or unlocked.
    pub(crate) mapped: Option<(Range<u64>, Lock)>,
}

impl Locking {
    /// Of `call`, which names the addresses `named`; `None` of one that is for something else.
    pub(crate) fn of(call: &Call, named: &Range<u64>) -> Option<Self> {
        let [first, _, third, ..] = call.args;
        let lock = |on_fault| if on_fault { Lock::OnFault } else { Lock::Now };
        let of_named = |lock| Some(Self { future: None, mapped: Some((named.clone(), lock)) });
        match i64::from(call.number) {
            libc::SYS_mlock => of_named(Lock::Now),
            libc::SYS_mlock2 => of_named(lock(third & MLOCK_ONFAULT != 0)),
            libc::SYS_munlock => of_named(Lock::Not),
            libc::SYS_mlockall => {
                let has = |flag: i32| first & flag as u64 != 0;
                let on_fault = has(libc::MCL_ONFAULT);
                let mapped = has(libc::MCL_CURRENT).then(|| (0..u64::MAX, lock(on_fault)));
                Some(Self { future: Some(has(libc::MCL_FUTURE) && !on_fault), mapped })
            }
            libc::SYS_munlockall => {
                Some(Self { future: Some(false), mapped: Some((0..u64::MAX, Lock::Not)) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::CallDetail;

    #[test]
    fn locks_are_for_a_range_or_for_all_and_take_effect_now_or_on_fault() {
        let of = |number: i64, first: i32, third: u64| {
            let args = [first as u64, 8192, third, 0, 0, 0];
            let call = Call { number: number as u32, args, result: 0, detail: CallDetail::None };
            Locking::of(&call, &(4096..12288)).map(|locking| (locking.future, locking.mapped))
        };
        let (named, all) = (4096..12288, 0..u64::MAX);
        assert_eq!(of(libc::SYS_mlock, 4096, 1), Some((None, Some((named.clone(), Lock::Now)))));
        assert_eq!(of(libc::SYS_mlock2, 4096, 0), Some((None, Some((named.clone(), Lock::Now)))));
        assert_eq!(of(libc::SYS_mlock2, 4096, 1), Some((None, Some((named.clone(), Lock::OnFault)))));
        assert_eq!(of(libc::SYS_munlock, 4096, 0), Some((None, Some((named, Lock::Not)))));
        let (current, future, on_fault) = (libc::MCL_CURRENT, libc::MCL_FUTURE, libc::MCL_ONFAULT);
        let lock_all = |flags| of(libc::SYS_mlockall, flags, 0);
        assert_eq!(lock_all(current), Some((Some(false), Some((all.clone(), Lock::Now)))));
        assert_eq!(lock_all(future), Some((Some(true), None)));
        assert_eq!(
            lock_all(current | future | on_fault),
            Some((Some(false), Some((all.clone(), Lock::OnFault))))
        );
        assert_eq!(of(libc::SYS_munlockall, 0, 0), Some((Some(false), Some((all, Lock::Not)))));
        assert_eq!(of(libc::SYS_madvise, 4096, 0), None);
    }
}

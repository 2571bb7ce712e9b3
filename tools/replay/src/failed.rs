//! Calls that bring memory in, and that failed in the recording.
//!
//! What Linux refused at once brought nothing in, so a plan has no memory for it. If such a call succeeds
//! here, that is a difference; it must not fill the machine.

use crate::args::{MAP_POPULATE, MLOCK_ONFAULT};
use crate::files::FileIds;
use crate::overlap::pages_of;
use crate::space::HostSpace;
use quire_arch::{VirtAddr, VirtRange};
use quire_host::HostPlatform;
use quire_mm::abi::{self, CallNumber, CallOutcome, FaultIn, Files};
use quire_mm::space::{self, LockAll, PageState, VmFlags};
use quire_trace::event::Call;

/// Why pages of a mapping do not come in. A call that meets such a mapping fails, and has brought in what is
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// No access is allowed, or there is a guard.
    Inaccessible,
    Unreadable,
    Unwritable,
}

/// Whether Linux refused `call`. The program break is where it was then: `brk` has no errors.
pub(super) fn has_failed(call: &Call) -> bool {
    let brk_refused =
        CallNumber::from_raw(call.number) == CallNumber::Brk && call.args[0] as i64 > call.result;
    call.errno().is_some() || brk_refused
}

/// What may have ended `call` when it had begun to bring pages in. `None` for calls that do not, and for
/// other errors.
pub(super) fn refusal(call: &Call) -> Option<Refusal> {
    let refusal = possible_refusal(call)?;
    let errno = if refusal == Refusal::Inaccessible { libc::ENOMEM } else { libc::EINVAL };
    (call.errno()? == errno).then_some(refusal)
}

/// What may refuse the pages that `call` is to bring in. `None` for calls that bring in none, and for
/// `mlockall`, which does not tell.
fn possible_refusal(call: &Call) -> Option<Refusal> {
    let [_, _, third, ..] = call.args;
    match CallNumber::from_raw(call.number) {
        CallNumber::Mlock => Some(Refusal::Inaccessible),
        CallNumber::Mlock2 if third as u32 == 0 => Some(Refusal::Inaccessible),
        CallNumber::Madvise => match third as i32 {
            libc::MADV_POPULATE_READ => Some(Refusal::Unreadable),
            libc::MADV_POPULATE_WRITE => Some(Refusal::Unwritable),
            _ => None,
        },
        _ => None,
    }
}

/// The same call with the same errors, which locks on fault and populates nothing.
pub(super) fn on_fault(number: CallNumber, mut args: [u64; 6]) -> (CallNumber, [u64; 6]) {
    match number {
        CallNumber::Mmap => args[3] &= !MAP_POPULATE,
        CallNumber::Mlock => {
            args[2] = MLOCK_ONFAULT;
            return (CallNumber::Mlock2, args);
        }
        CallNumber::Mlock2 => args[2] |= MLOCK_ONFAULT,
        CallNumber::Mlockall if args[0] != 0 => args[0] |= u64::from(LockAll::ONFAULT.bits()),
        _ => {}
    }
    (number, args)
}

/// Makes `call`, which failed in the recording. What it brings in is what it did on Linux before it failed.
pub(super) fn make(
    space: &HostSpace<'_>,
    call: &Call,
    files: &impl Files<HostPlatform>,
    known: &FileIds<'_>,
) -> CallOutcome {
    let number = CallNumber::from_raw(call.number);
    let made = |space: &HostSpace<'_>, (number, args)| abi::call(space, number, args, files, &FaultIn(space));
    let without_population = space::without_population(space);
    let (whole, mut unpopulated) = ((number, call.args), on_fault(number, call.args));
    let refused_words = call.errno() == Some(libc::EINVAL);
    match number {
        // Memory may be locked without a word of it in the call. These are undone if they succeed.
        CallNumber::Mmap | CallNumber::Mremap | CallNumber::Brk => return made(&without_population, whole),
        // With another error it has changed, and brought in, what was before a hole.
        CallNumber::Mprotect | CallNumber::PkeyMprotect if refused_words => {
            return made(&without_population, whole);
        }
        _ => {}
    }
    if number == CallNumber::Madvise && possible_refusal(call).is_some() && refused_words {
        // Linux did not know the advice, as before 5.14, or met a mapping. Of no length it has the errors of
        // its words.
        unpopulated.1[1] = 0;
    }
    if unpopulated == whole {
        return made(space, whole);
    }
    // A mapping of a driver is not marked to be locked on fault, and would come in.
    let outcome = made(&without_population, unpopulated);
    if matches!(outcome, CallOutcome::Done(_)) && !meets_refusal(space, call, known) {
        return outcome;
    }
    // It fails in the same way, and changes what Linux has changed then; or at the same page.
    made(space, whole)
}

/// Whether `call` meets a mapping whose pages do not come in, or one that goes on where its file has ended.
fn meets_refusal(space: &HostSpace<'_>, call: &Call, known: &FileIds<'_>) -> bool {
    let Some(refusal) = refusal(call) else { return false };
    let access = match refusal {
        Refusal::Inaccessible => VmFlags::ACCESS,
        Refusal::Unreadable => VmFlags::READ,
        Refusal::Unwritable => VmFlags::WRITE,
    };
    let range = pages_of(call.args[0], call.args[1]);
    let (start, end) = (VirtAddr(range.start), VirtAddr(range.end));
    let mut meets = false;
    space.mappings().for_each_in(start, end, |mapping| {
        let device = mapping.flags.intersects(VmFlags::IO | VmFlags::PFNMAP);
        meets |= !mapping.flags.intersects(access) || device && refusal != Refusal::Inaccessible;
        meets |= known.is_past_end(&mapping, end);
    });
    if !meets && refusal == Refusal::Inaccessible {
        let note = |_, state| meets |= state == PageState::Guard;
        space.mappings().pagemap(VirtRange::new(start, end), note);
    }
    meets
}

/// Whether `call` failed where Linux had no page to map: it locks or populates a mapping past the end of a
/// file whose size is not known, or shared memory whose size is known of the last time that it was mapped.
pub(super) fn may_pass_end_of_file(space: &HostSpace<'_>, call: &Call, known: &FileIds<'_>) -> bool {
    let errno = match possible_refusal(call) {
        None => return false,
        Some(Refusal::Inaccessible) => libc::ENOMEM,
        Some(Refusal::Unreadable | Refusal::Unwritable) => libc::EFAULT,
    };
    let range = pages_of(call.args[0], call.args[1]);
    let mut found = false;
    space.mappings().for_each_in(VirtAddr(range.start), VirtAddr(range.end), |mapping| {
        found |=
            mapping.file.is_some_and(|number| known.is_shared(number) || known.opening(number).is_none());
    });
    found && call.errno() == Some(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_host::{HostConfig, Machine};
    use quire_mm::abi::NoFiles;
    use quire_mm::space::Rights;
    use quire_trace::event::CallDetail;

    const BASE: u64 = 0x1000_0000_0000;
    const PAGE: u64 = 4096;
    const LEN: u64 = 8 << 20;

    /// Linux refused to map more, or to enlarge what is locked. Here it succeeds, and nothing comes in.
    #[test]
    fn what_is_mapped_in_place_of_a_failure_does_not_come_in() {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let locked = flags | libc::MAP_LOCKED as u64;
        let machine = Machine::new(&HostConfig::with_ram(64 << 20), Default::default()).unwrap();
        machine.vcpu(0).unwrap().run(|| {
            let space = machine.memory().create_space().unwrap().acting_with(Rights::LOCK);
            let heap = space.layout().brk.0;
            let map = [BASE, PAGE, 3, flags, u64::MAX, 0];
            let future = [(libc::MCL_CURRENT | libc::MCL_FUTURE) as u64, 0, 0, 0, 0, 0];
            for (number, args) in [(CallNumber::Mmap, map), (CallNumber::Mlockall, future)] {
                let done = abi::call(&space, number, args, &NoFiles, &FaultIn(&space));
                assert!(matches!(done, CallOutcome::Done(_)));
            }
            for (number, args, result) in [
                (libc::SYS_mmap, [BASE + LEN, LEN, 3, locked, u64::MAX, 0], -i64::from(libc::EAGAIN)),
                (libc::SYS_mmap, [BASE + 2 * LEN, LEN, 3, flags, u64::MAX, 0], -i64::from(libc::EAGAIN)),
                (libc::SYS_mremap, [BASE, PAGE, LEN, 0, 0, 0], -i64::from(libc::EAGAIN)),
                (libc::SYS_brk, [heap + LEN, 0, 0, 0, 0, 0], heap as i64),
            ] {
                let call = Call { number: number as u32, args, result, detail: CallDetail::None };
                let before = space.figures();
                assert!(
                    has_failed(&call)
                        && matches!(make(&space, &call, &NoFiles, &FileIds::default()), CallOutcome::Done(_))
                );
                let after = space.figures();
                assert!(after.mapped > before.mapped && after.locked > before.locked, "{call:?}");
                assert_eq!(after.resident, before.resident, "{call:?}");
            }
        });
    }
}

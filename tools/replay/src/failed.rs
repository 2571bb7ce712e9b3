//! Calls that bring memory in, and that failed in the recording.
//!
//! What Linux refused at once brought nothing in, so a plan has no memory for it. If such a call succeeds here,
//! that is a difference; it must not fill the machine.

use quire_host::HostPlatform;
use quire_mm::abi::{self, CallNumber, CallOutcome, FaultIn, Files};
use quire_mm::space::{LockAll, Space, VmFlags};
use quire_trace::event::Call;

const MLOCK_ONFAULT: u64 = libc::MLOCK_ONFAULT as u64;
const MAP_POPULATE: u64 = libc::MAP_POPULATE as u64;

/// Why pages of a mapping do not come in. A call that meets such a mapping fails, and has brought in what is
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// No access is allowed.
    Inaccessible,
    Unreadable,
    Unwritable,
}

/// What may have ended `call` when it had begun to bring pages in. `None` for calls that do not, and for other
/// errors.
pub(super) fn refusal(call: &Call) -> Option<Refusal> {
    let refusal = populates(call)?;
    let errno = if refusal == Refusal::Inaccessible { libc::ENOMEM } else { libc::EINVAL };
    (call.errno()? == errno).then_some(refusal)
}

/// Where the pages that `call` is to bring in do not. (`mlockall` does not tell.)
fn populates(call: &Call) -> Option<Refusal> {
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

/// The same call with the same errors, which brings in as little as can be.
pub(super) fn without_population(number: CallNumber, mut args: [u64; 6]) -> (CallNumber, [u64; 6]) {
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
pub(super) fn make(space: &Space<'_, HostPlatform>, call: &Call, files: &impl Files) -> CallOutcome {
    let number = CallNumber::from_raw(call.number);
    let made = |(number, args)| abi::call(space, number, args, files, &FaultIn(space));
    let (whole, mut less) = ((number, call.args), without_population(number, call.args));
    if number == CallNumber::Madvise && populates(call).is_some() && call.errno() == Some(libc::EINVAL) {
        // Linux did not know the advice, as before 5.14, or met a mapping. Of no length it has the errors of
        // its words.
        less.1[1] = 0;
    }
    if less == whole || number == CallNumber::Mmap {
        return made(less);
    }
    let outcome = made(less);
    if matches!(outcome, CallOutcome::Done(_)) && !meets_refusal(space, call) {
        return outcome;
    }
    // It fails in the same way, and changes what Linux has changed then; or at the same page.
    made(whole)
}

/// Whether `call` meets a mapping whose pages do not come in.
fn meets_refusal(space: &Space<'_, HostPlatform>, call: &Call) -> bool {
    let access = match refusal(call) {
        None => return false,
        Some(Refusal::Inaccessible) => VmFlags::ACCESS,
        Some(Refusal::Unreadable) => VmFlags::READ,
        Some(Refusal::Unwritable) => VmFlags::WRITE,
    };
    let [start, len, ..] = call.args;
    let end = start.saturating_add(len);
    let mut meets = false;
    space.mappings().for_each(|mapping| {
        let inside = mapping.range.start().0 < end && start < mapping.range.end().0;
        meets |= inside && !mapping.flags.intersects(access);
    });
    meets
}

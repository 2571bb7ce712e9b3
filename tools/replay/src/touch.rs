//! Replaying accesses.

use crate::space::HostSpace;
use quire_arch::{Access, VirtAddr};
use quire_host::{AccessError, Translation, Vcpu};
use quire_mm::space::FaultError;
use quire_trace::event::{Access as Recorded, Denial, Fault, Mode, Outcome};

/// The result of an access, compared with the recording.
pub(super) enum Touched {
    /// Linux's result.
    Same,
    /// It succeeded as on Linux, but Linux faulted and here the page was present already.
    Present(Translation),
    /// Not as on Linux: what Quire did, in words.
    Differs(String),
    /// Linux refused it for a reason that Quire does not model yet.
    Unsupported(&'static str),
    /// There was no memory.
    OutOfMemory,
}

/// What an access came to.
pub(super) type Found = Result<Translation, AccessError<FaultError>>;

/// Touches what `fault` touched; also returns whether by a write.
#[inline]
pub(super) fn make(vcpu: &Vcpu, space: &HostSpace<'_>, fault: &Fault) -> (Found, bool) {
    let program = vcpu.program(space);
    let mut found = Err(AccessError::Fault(FaultError::AccessDenied));
    let mut wrote = false;
    for access in tries(fault) {
        found = program.translate_for(VirtAddr(fault.addr), *access);
        wrote = *access == Access::Write && found.is_ok();
        if !matches!(found, Err(AccessError::Fault(FaultError::AccessDenied))) {
            break;
        }
    }
    (found, wrote)
}

/// How what was found stands to the recording.
pub(super) fn compare(vcpu: &Vcpu, space: &HostSpace<'_>, fault: &Fault, found: Found) -> Touched {
    let refused = matches!(found, Err(AccessError::Fault(FaultError::AccessDenied)));
    if refused && fault.access == Recorded::Execute && was_allowed(fault) {
        // An instruction was fetched from memory that is not executable. Linux faults the page in first, and
        // refuses the next fault, which is an event of its own. So does Quire: the page can be read without a
        // fault.
        let found = vcpu.program(space).translate_for(VirtAddr(fault.addr), Access::Read);
        if matches!(found, Ok(Translation::Tlb | Translation::Tables)) {
            return Touched::Same;
        }
    }
    compare_results(fault, found)
}

/// The accesses that a touch may have been, in the order in which they are tried.
fn tries(fault: &Fault) -> &'static [Access] {
    match fault.access {
        Recorded::Read => &[Access::Read],
        Recorded::Write => &[Access::Write],
        Recorded::Execute => &[Access::Execute],
        // The access that the mapping allows: then a wrong guess causes no difference. A write first, since
        // anonymous memory is rarely read before it is written, and a present page would not have faulted for
        // a read.
        Recorded::Unknown => &[Access::Write, Access::Read, Access::Execute],
    }
}

/// Whether Linux refused it because of the mappings.
pub(super) fn is_refused(fault: &Fault) -> bool {
    matches!(fault.outcome, Outcome::Denied(Denial::NotMapped | Denial::NotAllowed))
}

/// Whether `space` refuses it as Linux did.
pub(super) fn is_refused_by(space: &HostSpace<'_>, fault: &Fault) -> bool {
    let denied = Err(FaultError::AccessDenied);
    let results = tries(fault).iter().map(|&access| space.fault(VirtAddr(fault.addr), access));
    let mut others = results.skip_while(|result| *result == denied);
    let result = others.next().unwrap_or(denied);
    matches!(
        compare_results(fault, result.map(|()| Translation::Fault).map_err(AccessError::Fault)),
        Touched::Same
    )
}

fn compare_results(fault: &Fault, result: Found) -> Touched {
    if let Err(AccessError::Fault(FaultError::OutOfMemory(_))) = result {
        return Touched::OutOfMemory;
    }
    let refused = match fault.outcome {
        // The outcome is not known: a kernel copy that failed, or a source that does not report it.
        Outcome::Unresolved => return Touched::Same,
        Outcome::Unknown if fault.mode == Mode::Kernel => return Touched::Same,
        Outcome::Minor | Outcome::Major | Outcome::Unknown => None,
        Outcome::Denied(Denial::NotMapped) => Some(FaultError::NotMapped),
        Outcome::Denied(Denial::NotAllowed) => Some(FaultError::AccessDenied),
        Outcome::Denied(Denial::NoBacking) if is_bus(&result) || is_past_end(&result) => {
            return Touched::Same;
        }
        Outcome::Denied(Denial::NoBacking) => return Touched::Unsupported("touch past the end of a file"),
        Outcome::Denied(Denial::ProtectionKey) => return Touched::Unsupported("protection keys"),
        Outcome::Denied(Denial::Other) => return Touched::Unsupported("another signal on a touch"),
    };
    match (refused, result) {
        (None, Ok(Translation::Fault)) => Touched::Same,
        (None, Ok(found)) => Touched::Present(found),
        (Some(expected), Err(AccessError::Fault(found))) if expected == found => Touched::Same,
        (None, Err(_)) if is_bus(&result) => Touched::Unsupported("touch of huge pages (MAP_HUGETLB)"),
        (_, Ok(_)) => Touched::Differs("allowed".to_owned()),
        (_, Err(error)) => Touched::Differs(error.to_string()),
    }
}

fn is_past_end(result: &Found) -> bool {
    matches!(result, Err(AccessError::Fault(FaultError::PastEnd)))
}

fn is_bus(result: &Found) -> bool {
    matches!(result, Err(AccessError::Fault(FaultError::Bus)))
}

/// Whether Linux allowed the access, as far as is known.
#[inline]
pub(super) fn was_allowed(fault: &Fault) -> bool {
    !matches!(fault.outcome, Outcome::Denied(_) | Outcome::Unresolved)
}

/// Whether Linux found that the file ends before it. Shared memory that was longer is cut there.
#[inline]
pub(super) fn found_no_page(fault: &Fault) -> bool {
    matches!(fault.outcome, Outcome::Denied(Denial::NoBacking))
}

/// Whether Linux looked at what is cached around it: it did before it found that a file ends before. Of what
/// failed in the kernel that is not known.
pub(super) fn may_have_mapped(fault: &Fault) -> bool {
    !matches!(fault.outcome, Outcome::Denied(denial) if denial != Denial::NoBacking)
}

/// Whether a touch that Linux allowed found its page present, where Linux is known to have had a fault.
#[inline]
pub(super) fn was_present(fault: &Fault, found: Translation) -> bool {
    let may_be_none = fault.outcome == Outcome::Unknown && fault.mode == Mode::Kernel;
    found != Translation::Fault && !may_be_none
}

/// What was touched, in words.
pub(super) fn describe(fault: &Fault) -> String {
    match fault.access {
        Recorded::Unknown => format!("Touch of {:#x}", fault.addr),
        access => format!("{access:?} of {:#x}", fault.addr),
    }
}

/// What Linux did, in words.
pub(super) fn describe_recorded(fault: &Fault) -> String {
    match fault.outcome {
        Outcome::Denied(Denial::NotMapped) => FaultError::NotMapped.to_string(),
        Outcome::Denied(Denial::NotAllowed) => FaultError::AccessDenied.to_string(),
        Outcome::Denied(_) => "another signal".to_owned(),
        _ => "allowed".to_owned(),
    }
}

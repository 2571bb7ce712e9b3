//! Making recorded calls again.

use super::report::Gap;
use super::run::FileIds;
use crate::event::{Call, CallDetail, FileFacts, FileKind};
use quire_arch::VirtAddr;
use quire_host::HostPlatform;
use quire_mm::abi::{self, CallNumber, Files, OpenFile, Outcome};
use quire_mm::{MapFlags, MapRequest, Protection, Space};

/// What a call came to, held against the recording.
pub(super) enum Verdict {
    /// The same as on Linux.
    Same,
    /// Not the same: what Quire answered, in words.
    Differs(String),
    /// Quire cannot do this.
    Unsupported(Gap),
}

const EXECVE: u32 = 59;
const EXECVEAT: u32 = 322;
const PRCTL: u32 = 157;
const SET_MEMPOLICY: u32 = 238;
const PKEY_ALLOC: u32 = 330;
const PKEY_FREE: u32 = 331;
const PERSONALITY: u32 = 135;
const SETRLIMIT: u32 = 160;
const PRLIMIT64: u32 = 302;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_SET_VMA: u64 = 0x5356_4d41;
const READ_IMPLIES_EXEC: u64 = 0x0040_0000;
const PERSONALITY_QUERY: u64 = 0xffff_ffff;

/// File systems whose large mappings Linux aligns for huge pages (magic numbers of ext4, xfs and btrfs).
const HUGE_ALIGNED: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// The one file that a call maps.
struct RecordedFile<'c> {
    facts: Option<&'c FileFacts>,
    id: u64,
}

impl Files for RecordedFile<'_> {
    fn open_file(&self, _descriptor: i32) -> Option<OpenFile> {
        let facts = self.facts?;
        let mappable = match facts.kind {
            FileKind::BadDescriptor => return None,
            // Opened with O_PATH: good for naming the file and for nothing else.
            FileKind::Regular | FileKind::Directory | FileKind::Memory
                if !facts.readable && !facts.writable =>
            {
                return None;
            }
            FileKind::Directory | FileKind::Other => false,
            FileKind::Regular
            | FileKind::Memory
            | FileKind::HugePages
            | FileKind::Zero
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Unknown => true,
        };
        Some(OpenFile {
            id: self.id,
            readable: facts.readable,
            writable: facts.writable,
            mappable,
            no_exec: facts.no_exec,
            huge_alignment: facts.kind == FileKind::Zero || HUGE_ALIGNED.contains(&facts.file_system),
        })
    }
}

/// Makes `call` in `space` and compares.
pub(super) fn replay(space: &Space<'_, HostPlatform>, call: &Call, files: &mut FileIds) -> Verdict {
    if let Some(verdict) = beside_memory(call) {
        return verdict;
    }
    let number = CallNumber::from_raw(call.number);
    let facts = call.file();
    let id = facts.map_or(0, |facts| files.id(facts.device, facts.inode));
    if facts.is_some_and(|facts| facts.kind == FileKind::HugePages) {
        return unsupported(space, call, "mmap of a file of huge pages");
    }
    let outcome = abi::call(space, number, call.args, &RecordedFile { facts, id });
    match outcome.raw() {
        None => unsupported(space, call, form_of(number, &call.args)),
        Some(raw) if raw == call.result => Verdict::Same,
        Some(_) => {
            let found = describe(outcome);
            catch_up(space, call, number, outcome);
            Verdict::Differs(found)
        }
    }
}

/// Calls that do not change the address space, or only its limits, which follow as events of their own.
fn beside_memory(call: &Call) -> Option<Verdict> {
    let succeeded = call.errno().is_none();
    let beside = match (call.number, call.args[0]) {
        // Where memory is taken from concerns the thread, and there is one node to take it from.
        (SETRLIMIT | PRLIMIT64 | SET_MEMPOLICY, _)
        | (PRCTL, PR_SET_THP_DISABLE)
        | (PERSONALITY, PERSONALITY_QUERY) => true,
        // A successful exec is an event of its own; a failed one changed nothing. There are no protection keys, and
        // names of mappings are not kept: as on a CPU and a kernel without them.
        (EXECVE | EXECVEAT | PKEY_ALLOC | PKEY_FREE, _) | (PRCTL, PR_SET_VMA) => !succeeded,
        (PERSONALITY, wanted) => wanted & READ_IMPLIES_EXEC == 0,
        _ => false,
    };
    beside.then_some(Verdict::Same)
}

/// Names what is not built, as finely as it helps.
fn form_of(number: CallNumber, args: &[u64; 6]) -> String {
    let name = number.name().map_or_else(|| format!("call {}", number.raw()), ToOwned::to_owned);
    match number {
        CallNumber::Madvise => format!("{name} with advice {}", args[2]),
        CallNumber::Mmap => format!("{name} with flags {:#x}", args[3]),
        _ if number.raw() == PRCTL => format!("{name} option {}", args[0]),
        _ => name,
    }
}

fn unsupported(space: &Space<'_, HostPlatform>, call: &Call, what: impl Into<String>) -> Verdict {
    if let CallDetail::Mapped { start, bytes } = call.detail {
        map_there(space, start, bytes, Protection::READ | Protection::WRITE);
    } else if call.errno().is_none() && CallNumber::from_raw(call.number) == CallNumber::Mmap {
        map_there(
            space,
            call.result as u64,
            call.args[1],
            Protection::from_bits_truncate(call.args[2] as u32),
        );
    }
    Verdict::Unsupported(Gap(what.into()))
}

/// Brings the space to where Linux was after a call that came out differently.
fn catch_up(space: &Space<'_, HostPlatform>, call: &Call, number: CallNumber, outcome: Outcome) {
    let linux = call.errno().is_none().then_some(call.result as u64);
    let ours = if let Outcome::Done(value) = outcome { Some(value) } else { None };
    match number {
        CallNumber::Mmap => {
            if let Some(ours) = ours {
                let _ = space.munmap(VirtAddr(ours), call.args[1]);
            }
            if let Some(linux) = linux {
                let protection = Protection::from_bits_truncate(call.args[2] as u32);
                map_there(space, linux, call.args[1], protection);
            }
        }
        CallNumber::Mremap => {
            if let (Some(ours), Some(linux)) = (ours, linux) {
                let flags = quire_mm::RemapFlags::MAYMOVE | quire_mm::RemapFlags::FIXED;
                let _ = space.mremap(VirtAddr(ours), call.args[2], call.args[2], flags, VirtAddr(linux));
            } else if let Some(linux) = linux {
                map_there(space, linux, call.args[2], Protection::READ | Protection::WRITE);
            }
        }
        _ => {}
    }
}

fn map_there(space: &Space<'_, HostPlatform>, start: u64, bytes: u64, protection: Protection) {
    let request = MapRequest::anonymous(bytes, protection).at(VirtAddr(start), MapFlags::FIXED);
    // Best effort: the difference was counted, and what follows from a failure here will be counted too.
    let _ = space.mmap(&request);
}

/// A result in words: an address or number, or an errno's name.
fn describe(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done(value) => format!("{value:#x}"),
        Outcome::Failed(errno) => errno.to_string(),
        Outcome::Unsupported => "unsupported".to_owned(),
    }
}

/// The recorded result in the same words.
pub(super) fn describe_recorded(call: &Call) -> String {
    match call.errno() {
        Some(errno) => quire_mm::Errno(errno).to_string(),
        None => format!("{:#x}", call.result),
    }
}

//! What a call's arguments point to.

use super::Tracer;
use crate::proc::trial::Asked;
use crate::proc::{files, maps};
use crate::sys::{Tid, memory, ptrace};
use quire_trace::event::{CallDetail, is_error};

/// Most ranges of one `process_madvise` (the kernel takes no more: UIO_MAXIOV).
const RANGES_LIMIT: u64 = 1024;
/// Longest name of anonymous memory, with its zero byte (the kernel takes no more).
const NAME_LIMIT: usize = 80;
/// Most pages of a `mincore` whose vector is counted.
const MINCORE_LIMIT: u64 = 1 << 20;

impl Tracer<'_> {
    /// What must be read before the call is made.
    pub(super) fn detail_before(&mut self, tid: Tid, number: u64, args: &[u64; 6]) -> CallDetail {
        match number as i64 {
            libc::SYS_mmap if args[3] as i32 & libc::MAP_ANONYMOUS == 0 => {
                let space = self.tasks.get(&tid).map(|task| task.space);
                let Some(space) = space.and_then(|space| self.spaces.get_mut(&space)) else {
                    return CallDetail::None;
                };
                let (fd, asked) = (args[4] as i32, Asked::from_args(args));
                let known = (&mut space.last_file, &mut self.files.mounts);
                let (facts, is_asked) = files::facts(tid, fd, asked, known, self.began);
                self.see_mapped(tid, fd, &facts, is_asked);
                self.see_memory(tid, fd, &facts);
                if let Some(rotation) = &mut self.rotation {
                    rotation.note_mapped(&facts);
                }
                CallDetail::File(facts)
            }
            libc::SYS_mmap => site(tid),
            libc::SYS_process_madvise => ranges(tid, args[1], args[2]),
            libc::SYS_prctl if args[0] as i32 == libc::PR_SET_VMA => {
                let name = (args[4] != 0).then(|| memory::read_string(tid, args[4], NAME_LIMIT)).flatten();
                CallDetail::Name(name)
            }
            _ => CallDetail::None,
        }
    }

    /// What can be read only after it.
    pub(super) fn detail_after(
        &mut self,
        tid: Tid,
        number: u64,
        args: &[u64; 6],
        result: i64,
        before: CallDetail,
    ) -> CallDetail {
        let start = match number as i64 {
            _ if is_error(result) => return before,
            libc::SYS_mincore => return resident(tid, args),
            libc::SYS_shmat => result as u64,
            libc::SYS_io_setup => memory::read_u64(tid, args[1]).unwrap_or(0),
            _ => return before,
        };
        let mappings = maps::without_flags(tid);
        let mapping = mappings.iter().find(|mapping| mapping.start == start);
        let bytes = mapping.map_or(0, |mapping| mapping.end - mapping.start);
        if number as i64 == libc::SYS_shmat {
            self.see_segment(tid, args[0], (start, bytes));
        }
        CallDetail::Mapped { start, bytes }
    }
}

/// From where a thread that is stopped before a call makes it.
fn site(tid: Tid) -> CallDetail {
    ptrace::call_site(tid).map_or(CallDetail::None, |(instruction, stack)| CallDetail::Site {
        instruction,
        on_stack: memory::read_u64(tid, stack).unwrap_or(0),
    })
}

fn ranges(tid: Tid, addr: u64, count: u64) -> CallDetail {
    let each = (0..count.min(RANGES_LIMIT)).map_while(|place| {
        let [start, len] = memory::read_words(tid, addr.wrapping_add(16 * place))?;
        Some((start, len))
    });
    CallDetail::Ranges(each.collect())
}

fn resident(tid: Tid, args: &[u64; 6]) -> CallDetail {
    let pages = args[1].div_ceil(4096);
    if pages > MINCORE_LIMIT {
        return CallDetail::None;
    }
    let mut bytes = vec![0; pages as usize];
    let read = memory::read(tid, args[2], &mut bytes);
    let resident = bytes[..read].iter().filter(|byte| **byte & 1 != 0).count();
    CallDetail::Resident { pages: resident as u64 }
}

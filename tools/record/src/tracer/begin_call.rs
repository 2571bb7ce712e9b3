//! Resuming a thread at the entry of its call, after what is recorded before it.

use super::Tracer;
use super::state::{Entry, InCall, State};
use super::untraced::is_untraced;
use crate::calls::{self, Class};
use crate::sys::time::now;
use crate::sys::{Tid, memory};

impl Tracer<'_> {
    /// Resumes a thread at the entry of its call, and records the state before it.
    pub(super) fn make_call(&mut self, tid: Tid, entry: Entry) {
        self.cpu(tid);
        let Entry { number, args, .. } = entry;
        let class = calls::classify(number, &args);
        if class == Class::Clone {
            let flags = clone_flags(tid, number, &args);
            return self.make_thread(tid, entry, flags);
        }
        let detail = self.detail_before(tid, number, &args);
        let limit = new_limit(tid, number, &args);
        if calls::disturbs_pages(number, &args) {
            self.touched_before_call(tid, number, &args);
        }
        let emulated = self.skips_thp_call(tid, &entry);
        let start = now();
        self.merger.begin(tid, start);
        self.set_state(tid, State::InCall(InCall { entry, start, detail, limit, emulated, file: None }));
        self.resume(tid, 0);
    }

    /// Resumes a thread at the entry of a call that makes a thread or process with these clone flags.
    pub(super) fn make_thread(&mut self, tid: Tid, entry: Entry, flags: u64) {
        self.touched_before_clone(tid, flags);
        if is_untraced(flags) {
            self.trace_the_child(tid, &entry, flags);
        }
        let start = now();
        self.merger.begin(tid, start);
        self.set_state(tid, State::InClone { entry, start, flags });
        self.resume(tid, 0);
    }
}

/// The flags of a call that makes a thread or process.
fn clone_flags(tid: Tid, number: u64, args: &[u64; 6]) -> u64 {
    match number as i64 {
        libc::SYS_clone => args[0],
        libc::SYS_vfork => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        // The first word of its argument block.
        libc::SYS_clone3 => memory::read_u64(tid, args[0]).unwrap_or(0),
        _ => 0,
    }
}

/// The limit that a call sets: whose, soft, hard.
fn new_limit(tid: Tid, number: u64, args: &[u64; 6]) -> Option<(Tid, u64, u64)> {
    let (target, addr) = match number as i64 {
        libc::SYS_setrlimit => (tid, args[1]),
        libc::SYS_prlimit64 if args[0] as Tid == 0 => (tid, args[2]),
        libc::SYS_prlimit64 => (args[0] as Tid, args[2]),
        _ => return None,
    };
    let [soft, hard] = memory::read_words(tid, addr)?;
    Some((target, soft, hard))
}

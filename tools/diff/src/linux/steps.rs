//! Reading the results of a program, step by step.

use super::board::{
    self, DONE, MOST_RUNS, MOST_VMAS, SLOTS, Slot, WAKE_EVERY, WANT_ALL_TEXT, WANT_STATUS, WANT_SUMS,
};
use super::raw::{futex_wait, futex_wake};
use super::{Oracle, OracleError, Start, ipc, memfd, observe, text};
use crate::observation::{Detail, Observation, Pages, Region, Wanted};
use crate::program::{Call, Op, Outcome};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use quire_arch::PAGE_SIZE;
use quire_mm::space::{PageState, VmFlags};

/// A program that is being run by the oracle.
pub(crate) struct Steps<'o> {
    pub(super) oracle: &'o mut Oracle,
    pub(super) next: u32,
    pub(super) count: u32,
    pub(super) command: u32,
}

impl Steps<'_> {
    /// Reads the result of the next operation and the state after it. `None` for an observation: its
    /// process does not exist (any more).
    pub(crate) fn next(
        &mut self,
        op: &Op,
        seen: &mut Observation,
    ) -> Result<(Outcome, Option<Wanted>), OracleError> {
        let board = &self.oracle.board;
        loop {
            // Acquire: pairs with the release of the process that filled the slot.
            let ready = board.ready.load(Acquire);
            if ready != self.next {
                break;
            }
            // Acquire: what was made was marked as ready before the program was over.
            if board.over.load(Acquire) == self.command && board.ready.load(Acquire) == self.next {
                // The last process has ended: no process makes the rest.
                self.next += 1;
                board.ready.store(self.next, Relaxed);
                seen.clear();
                return Ok((Outcome::NotMade, None));
            }
            let status = board.died.load(Relaxed);
            if status != 0 || Oracle::is_gone(self.oracle.pid) {
                return Err(OracleError::Died { status });
            }
            futex_wait(&board.ready, ready);
        }
        let error = board.file_error.load(Relaxed);
        if error != 0 {
            return Err(OracleError::File { errno: -error });
        }
        let slot = &board.slots[(self.next % SLOTS) as usize];
        let outcome = outcome(op, slot);
        seen.clear();
        let listed = (slot.vma_count.load(Relaxed) as usize) < MOST_VMAS
            && (slot.run_count.load(Relaxed) as usize) < MOST_RUNS;
        // What did not fit cannot be compared.
        let observed = slot.observed.load(Relaxed) != 0 && (listed || slot.cut.load(Relaxed) == 0);
        let wanted = observed.then(|| self.read(op, slot, seen));
        self.next += 1;
        board.consumed.store(self.next, Release);
        if self.next.is_multiple_of(WAKE_EVERY) {
            futex_wake(&board.consumed);
        }
        Ok((outcome, wanted))
    }

    fn read(&self, op: &Op, slot: &Slot, seen: &mut Observation) -> Wanted {
        let board = &self.oracle.board;
        for vma in &slot.vmas[..slot.vma_count.load(Relaxed) as usize] {
            let [start, end, raw, offset] = vma.each_ref().map(|word| word.load(Relaxed));
            let mut flags = VmFlags::empty();
            for (bit, flag) in [
                (observe::VMA_READABLE, VmFlags::READ),
                (observe::VMA_WRITABLE, VmFlags::WRITE),
                (observe::VMA_EXECUTABLE, VmFlags::EXEC),
                (observe::VMA_SHARED, VmFlags::MAYSHARE),
            ] {
                flags.set(flag, raw & bit != 0);
            }
            let (file, memfd) = (raw & observe::VMA_FILE != 0, (raw >> observe::VMA_MEMFD_SHIFT) as u32);
            let region = Region { start, end, flags, offset, file, memfd };
            let offset = if region.is_cached() { offset } else { 0 };
            seen.regions.push(Region { offset, ..region });
        }
        for run in &slot.runs[..slot.run_count.load(Relaxed) as usize] {
            let [start, end, categories] = run.each_ref().map(|word| word.load(Relaxed));
            if categories & observe::PAGE_IS_GUARD != 0 {
                seen.add_pages(Pages { start, end, state: PageState::Guard, large: false });
                continue;
            }
            if categories & observe::PAGE_IS_PRESENT == 0 {
                seen.add_swapped(start, end);
                continue;
            }
            let state = match categories & (observe::PAGE_IS_FILE | observe::PAGE_IS_PFNZERO) {
                0 => PageState::Anonymous,
                only if only & observe::PAGE_IS_PFNZERO != 0 => PageState::Zero,
                _ => PageState::File,
            };
            let large = categories & observe::PAGE_IS_HUGE != 0;
            seen.add_pages(Pages { start, end, state, large });
        }
        let sums = &slot.sums[..slot.sum_count.load(Relaxed) as usize];
        seen.sums.extend(sums.iter().map(|sum| (sum[0].load(Relaxed), sum[1].load(Relaxed))));
        seen.file_size = slot.file_size.load(Relaxed).cast_unsigned();
        let file_sums = &slot.file_sums[..slot.file_count.load(Relaxed) as usize];
        seen.file_sums.extend(file_sums.iter().map(|sum| sum.load(Relaxed)));
        memfd::read(slot, &mut seen.memfds);
        ipc::read(slot, &mut seen.segments);
        let index = self.next as usize;
        let want = board.ops[index].want.load(Relaxed);
        let all_summed = slot.cut.load(Relaxed) == 0;
        let mut wanted = Wanted { sums: want & WANT_SUMS != 0 && all_summed, ..Wanted::default() };
        if want & WANT_STATUS != 0 {
            wanted.figures = true;
            let text = as_text(&slot.status[..slot.status_len.load(Relaxed) as usize]);
            seen.figures = Some(text::status(text));
        }
        if slot.text_len.load(Relaxed) > 0 {
            let all = want & WANT_ALL_TEXT != 0;
            wanted.details_until = if all { u64::MAX } else { board.window_end.load(Relaxed) };
            let text = as_text(&slot.text[..slot.text_len.load(Relaxed) as usize]);
            text::smaps(text, |detail: Detail, _| seen.details.push(detail));
        }
        if op.call == Call::Mincore {
            let pages = self.mincore_pages(index);
            seen.residency.extend(slot.text[..pages].iter().map(|page| page.load(Relaxed) & 1 != 0));
        }
        wanted
    }

    /// How many pages a `mincore` returned, if it succeeded.
    fn mincore_pages(&self, index: usize) -> usize {
        let len = self.oracle.board.ops[index].words[1].load(Relaxed);
        (len.div_ceil(PAGE_SIZE) as usize).min(board::TEXT_BYTES)
    }

    /// The address of the area that operation `id` made.
    pub(crate) fn area(&self, id: u32) -> Option<u64> {
        let addr = self.oracle.board.areas[id as usize].load(Relaxed);
        (addr != 0).then_some(addr)
    }

    pub(crate) fn origin(&self) -> &Start {
        &self.oracle.start
    }
}

impl Drop for Steps<'_> {
    /// Ends the program and waits until all of its processes have ended.
    fn drop(&mut self) {
        let board = &self.oracle.board;
        if self.next < self.count {
            board.stop.store(1, Relaxed);
        }
        while board.over.load(Acquire) != self.command {
            futex_wake(&board.consumed);
            futex_wake(&board.turn);
            let over = board.over.load(Acquire);
            if over != self.command {
                futex_wait(&board.over, over);
            }
            if Oracle::is_gone(self.oracle.pid) {
                return;
            }
        }
    }
}

fn outcome(op: &Op, slot: &Slot) -> Outcome {
    if slot.state.load(Relaxed) != DONE {
        return Outcome::NotMade;
    }
    let value = slot.value.load(Relaxed);
    match slot.signal.load(Relaxed) {
        0 => Outcome::Value(value),
        signal => {
            let done = if op.call == Call::Fill { value.cast_unsigned() } else { 0 };
            Outcome::Signal { signal, code: slot.code.load(Relaxed), done }
        }
    }
}

/// What the kernel wrote, which is ASCII.
fn as_text(bytes: &[AtomicU8]) -> &str {
    // SAFETY: `AtomicU8` is laid out as `u8`, and the slot is not written before it is marked as consumed.
    let bytes = unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), bytes.len()) };
    str::from_utf8(bytes).unwrap_or("")
}
